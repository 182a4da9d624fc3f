#pragma once

#include "vlmtrain/engine/loss/task_balance.h"

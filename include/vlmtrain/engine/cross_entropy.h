#pragma once

#include "vlmtrain/engine/loss/objective.h"

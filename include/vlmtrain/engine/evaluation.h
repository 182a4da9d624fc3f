#pragma once

#include "vlmtrain/engine/generation/evaluation.h"

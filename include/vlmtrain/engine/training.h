#pragma once

#include "vlmtrain/engine/step/step.h"

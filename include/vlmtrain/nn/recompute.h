#pragma once

#include "vlmtrain/nn/layers/recompute.h"

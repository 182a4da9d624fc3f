#pragma once

#include "vlmtrain/nn/layers/linear.h"

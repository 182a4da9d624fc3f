#pragma once

#include "vlmtrain/nn/layers/matmul.h"

#pragma once

#include "vlmtrain/nn/weights/quantization.h"

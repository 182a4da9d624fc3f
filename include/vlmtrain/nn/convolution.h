#pragma once

#include "vlmtrain/nn/layers/convolution.h"

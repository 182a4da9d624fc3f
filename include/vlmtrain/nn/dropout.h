#pragma once

#include "vlmtrain/nn/layers/dropout.h"

#pragma once

#include "vlmtrain/nn/layers/activation.h"

#pragma once

#include "vlmtrain/nn/layers/position_embedding.h"

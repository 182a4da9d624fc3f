#pragma once

#include "vlmtrain/nn/layers/losses.h"

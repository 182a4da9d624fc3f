#pragma once

#include "vlmtrain/nn/layers/norm.h"

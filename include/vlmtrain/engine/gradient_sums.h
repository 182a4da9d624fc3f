#pragma once

#include "vlmtrain/engine/gradients/gradient_buckets.h"

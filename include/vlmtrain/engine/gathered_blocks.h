#pragma once

#include "vlmtrain/engine/gradients/sharded_blocks.h"

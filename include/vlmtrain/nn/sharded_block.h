#pragma once

#include "vlmtrain/nn/weights/sharded_block.h"

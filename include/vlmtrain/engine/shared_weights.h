#pragma once

#include "vlmtrain/engine/optimizer/sharded_optimizer_sync.h"

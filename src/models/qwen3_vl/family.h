#pragma once

#include "models/registry.h"

namespace vlmtrain::models::qwen3_vl {

Family family();

}  // namespace vlmtrain::models::qwen3_vl

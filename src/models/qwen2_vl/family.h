#pragma once

#include "models/registry.h"

namespace vlmtrain::models::qwen2_vl {

Family family();

}  // namespace vlmtrain::models::qwen2_vl

#pragma once

#include "models/registry.h"

namespace vlmtrain::models::gemma3 {

Family family();

}  // namespace vlmtrain::models::gemma3

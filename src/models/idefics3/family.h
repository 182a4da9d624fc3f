#pragma once

#include "models/registry.h"

namespace vlmtrain::models::idefics3 {

Family family();

}  // namespace vlmtrain::models::idefics3

#pragma once

#include "models/registry.h"

namespace vlmtrain::models::brain_llava {

Family family();

}  // namespace vlmtrain::models::brain_llava

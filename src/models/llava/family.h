#pragma once

#include "models/registry.h"

namespace vlmtrain::models::llava {

Family family();

}  // namespace vlmtrain::models::llava

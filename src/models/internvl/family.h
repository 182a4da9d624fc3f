#pragma once

#include "models/registry.h"

namespace vlmtrain::models::internvl {

Family family();

}  // namespace vlmtrain::models::internvl

#pragma once

#include "models/registry.h"

namespace vlmtrain::models::nanovlm {

Family family();

}  // namespace vlmtrain::models::nanovlm

#pragma once

#include "models/registry.h"

namespace vlmtrain::models::prs_med {

Family family();

}  // namespace vlmtrain::models::prs_med

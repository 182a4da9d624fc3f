#pragma once

#include <string>

namespace vlmtrain::models {

/// The date here, as "2026-11-22".
std::string today();

}  // namespace vlmtrain::models

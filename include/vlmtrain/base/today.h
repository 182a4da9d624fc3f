#pragma once

#include <string>

namespace vlmtrain {

/// The date here, as "2026-11-22".
std::string current_date();

}  // namespace vlmtrain

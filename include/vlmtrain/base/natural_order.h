#pragma once

#include <string_view>

namespace vlmtrain {

/// Whether `a` stands before `b` where runs of digits count as numbers: frame2 before frame10. A total order: names
/// that differ only in leading zeros are in the order of their bytes.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace vlmtrain

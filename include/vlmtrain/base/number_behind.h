#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace vlmtrain {

/// 7 of "step-7" with the prefix "step-"; nothing where the text does not begin so, or goes on as anything else than a
/// whole number of 64 bits.
std::optional<int64_t> parse_suffix_int(std::string_view prefix, std::string_view text);

}  // namespace vlmtrain

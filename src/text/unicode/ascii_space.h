#pragma once

#include <cstddef>
#include <string_view>

namespace vlmtrain::text {

inline constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

/// How many bytes of ASCII white space `text` begins with.
inline size_t count_leading_white_space(std::string_view text) {
  const size_t end = text.find_first_not_of(kWhiteSpace);
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace vlmtrain::text

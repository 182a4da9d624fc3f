#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace vlmtrain::text {

inline bool is_visible(char c) {
  return std::string_view(" \t\n\v\f\r").find(c) == std::string_view::npos;
}

/// The bytes of `text` that are not ASCII white space: what templates keep when they trim and join texts.
inline std::string remove_white_space(std::string_view text) {
  std::string visible;
  visible.reserve(text.size());
  std::ranges::copy_if(text, std::back_inserter(visible), is_visible);
  return visible;
}

inline size_t count_visible(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, is_visible));
}

}  // namespace vlmtrain::text

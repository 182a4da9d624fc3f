#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace vlmtrain::planner {

/// What is typed, as the words that a shell makes of it.
inline std::vector<std::string> split_arguments(const std::string& text) {
  std::vector<std::string> arguments;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) arguments.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return arguments;
}

/// The same of a form, with `value` in the place of {}.
template <class Value>
std::vector<std::string> format_arguments(const std::string& format, const Value& value) {
  return split_arguments(fmt::format(fmt::runtime(format), value));
}

}  // namespace vlmtrain::planner

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace vlmtrain::planner {

/// What is typed, as the words that a shell makes of it.
inline std::vector<std::string> words_of(const std::string& typed) {
  std::vector<std::string> words;
  for (size_t start = 0; start < typed.size();) {
    const size_t end = std::min(typed.find(' ', start), typed.size());
    if (end > start) words.push_back(typed.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

/// The same of a form, with `value` in the place of {}.
template <class Value>
std::vector<std::string> words_of(const std::string& form, const Value& value) {
  return words_of(fmt::format(fmt::runtime(form), value));
}

}  // namespace vlmtrain::planner

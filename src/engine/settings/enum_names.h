#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

/// Returns the name of a value. Throws InternalError if it has none.
template <class T>
std::string find_enum_name(const std::vector<std::pair<std::string, T>>& names, T value) {
  for (const auto& [name, named_value] : names) {
    if (named_value == value) return name;
  }
  throw InternalError("the value has no name");
}

/// Returns the value of a name; nullopt if there is none.
template <class T>
std::optional<T> find_enum_value(const std::vector<std::pair<std::string, T>>& names, std::string_view name) {
  for (const auto& [known_name, value] : names) {
    if (known_name == name) return value;
  }
  return std::nullopt;
}

}  // namespace vlmtrain::engine

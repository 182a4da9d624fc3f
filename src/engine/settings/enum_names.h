#pragma once

#include <string>
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

}  // namespace vlmtrain::engine

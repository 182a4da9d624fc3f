#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace vlmtrain::report {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace vlmtrain::report

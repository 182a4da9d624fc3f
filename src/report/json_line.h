#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace vlmtrain::report {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

/// JSON on one line. Bytes that are not UTF-8, which an id or a path may hold, are replaced.
inline std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace vlmtrain::report

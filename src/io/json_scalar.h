#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <optional>
#include <string>

namespace vlmtrain::io {

/// Returns the value of the first of `keys` that is there and not null; null without any.
inline const nlohmann::json* find_present(const nlohmann::json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

/// Returns the text of a string, a number or a boolean; nothing for other values.
inline std::optional<std::string> scalar_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? std::optional(value.dump()) : std::nullopt;
}

}  // namespace vlmtrain::io

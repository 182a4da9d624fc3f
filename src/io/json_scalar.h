#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace vlmtrain::io {

/// Returns the text of a string, a number or a boolean; nothing for other values.
inline std::optional<std::string> scalar_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? std::optional(value.dump()) : std::nullopt;
}

}  // namespace vlmtrain::io

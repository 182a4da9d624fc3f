#include "vlmtrain/io/unread_keys.h"

#include <algorithm>

namespace vlmtrain::io {

bool is_empty_value(const nlohmann::json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

std::vector<std::string> unread_keys(const nlohmann::json& object, std::span<const std::string_view> read,
                                     std::span<const HarmlessKey> harmless) {
  std::vector<std::string> unread;
  for (const auto& [key, value] : object.items()) {
    const bool is_known = std::ranges::find(read, std::string_view(key)) != read.end() ||
                          std::ranges::find(harmless, std::string_view(key), &HarmlessKey::name) != harmless.end();
    if (!is_known && !is_empty_value(value)) unread.push_back(key);
  }
  return unread;
}

}  // namespace vlmtrain::io

#include "vlmtrain/io/unread_keys.h"

#include <algorithm>

namespace vlmtrain::io {

bool is_empty_value(const nlohmann::json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

std::vector<std::string> find_unread_keys(const nlohmann::json& object, std::span<const std::string_view> read_keys,
                                          std::span<const HarmlessKey> harmless_keys) {
  std::vector<std::string> result;
  for (const auto& [key, value] : object.items()) {
    const bool is_known =
        std::ranges::find(read_keys, std::string_view(key)) != read_keys.end() ||
        std::ranges::find(harmless_keys, std::string_view(key), &HarmlessKey::name) != harmless_keys.end();
    if (!is_known && !is_empty_value(value)) result.push_back(key);
  }
  return result;
}

}  // namespace vlmtrain::io

#pragma once

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

/// A key that is not read because its value cannot change what is learned or saved.
struct HarmlessKey {
  std::string_view name;
  std::string_view reason;  ///< why, in a phrase; for readers of the table
};

/// Returns true for values that mean the same as an absent key: null, "", [] and {}.
bool is_empty_value(const nlohmann::json& value);

/// Returns the keys of `object` that would be ignored in silence: neither in `read_keys` nor in `harmless_keys`, and
/// with a value that is not empty (is_empty_value). The order is alphabetical. REQUIRES: `object` is an object.
std::vector<std::string> find_unread_keys(const nlohmann::json& object, std::span<const std::string_view> read_keys,
                                          std::span<const HarmlessKey> harmless_keys = {});

}  // namespace vlmtrain::io

#include "models/checkpoints/weight_spellings.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

bool has_name_with_prefix(std::span<const std::string> tensor_names, std::string_view prefix) {
  return std::ranges::any_of(tensor_names, [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

StateDictKeyMap StateDictKeyMap::detect(std::span<const KeyAliases> table, std::span<const std::string> tensors) {
  StateDictKeyMap map;
  for (const auto& [parameter, checkpoint_prefixes] : table) {
    const auto it =
        std::ranges::find_if(checkpoint_prefixes, [&](auto prefix) { return has_name_with_prefix(tensors, prefix); });
    map.prefixes_.emplace_back(parameter, it == checkpoint_prefixes.end() ? checkpoint_prefixes.front() : *it);
  }
  return map;
}

std::string StateDictKeyMap::to_checkpoint_key(const std::string& parameter) const {
  for (const auto& [parameter_prefix, checkpoint_prefix] : prefixes_) {
    if (parameter.starts_with(parameter_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(parameter_prefix.size());
  }
  return parameter;
}

}  // namespace vlmtrain::models

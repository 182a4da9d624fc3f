#include "models/checkpoints/weight_spellings.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

bool any_starts_with(std::span<const std::string> names, std::string_view prefix) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

WeightSpellings WeightSpellings::of(std::span<const Spellings> table, std::span<const std::string> tensors) {
  WeightSpellings names;
  for (const auto& [parameter, known] : table) {
    const auto found = std::ranges::find_if(known, [&](auto prefix) { return any_starts_with(tensors, prefix); });
    names.prefixes_.emplace_back(parameter, found == known.end() ? known.front() : *found);
  }
  return names;
}

std::string WeightSpellings::spelled(const std::string& parameter) const {
  for (const auto& [own, checkpoints] : prefixes_) {
    if (parameter.starts_with(own)) return std::string(checkpoints) + parameter.substr(own.size());
  }
  return parameter;
}

}  // namespace vlmtrain::models

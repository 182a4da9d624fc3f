#include "models/qwen2_vl/weight_names.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace vlmtrain::models::qwen2_vl {

namespace {

/// The modules', the published.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPublished{
    {{"model.visual.", "visual."}, {"model.language_model.", "model."}}};

}  // namespace

QwenKeyMap QwenKeyMap::detect(std::span<const std::string> tensors) {
  QwenKeyMap key_map;
  key_map.is_published_ =
      std::ranges::none_of(tensors, [](const std::string& name) { return name.starts_with(kPublished.back().first); });
  return key_map;
}

std::string QwenKeyMap::to_checkpoint_key(const std::string& parameter) const {
  if (!is_published_) return parameter;
  for (const auto& [module_prefix, checkpoint_prefix] : kPublished) {
    if (parameter.starts_with(module_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(module_prefix.size());
  }
  return parameter;
}

}  // namespace vlmtrain::models::qwen2_vl

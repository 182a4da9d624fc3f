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

WeightNames WeightNames::of(std::span<const std::string> tensors) {
  WeightNames names;
  names.is_published_ =
      std::ranges::none_of(tensors, [](const std::string& name) { return name.starts_with(kPublished.back().first); });
  return names;
}

std::string WeightNames::spelled(const std::string& parameter) const {
  if (!is_published_) return parameter;
  for (const auto& [own, published] : kPublished) {
    if (parameter.starts_with(own)) return std::string(published) + parameter.substr(own.size());
  }
  return parameter;
}

}  // namespace vlmtrain::models::qwen2_vl

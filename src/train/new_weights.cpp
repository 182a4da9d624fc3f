#include "train/new_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

namespace {

/// The first of them.
std::string format_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 6;
  const auto first = std::span(names).first(std::min(names.size(), kMaxListed));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMaxListed ? ", …" : "");
}

std::string format_list(const std::vector<nn::Parameter>& parameters) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters) names.push_back(parameter.name);
  return format_list(names);
}

}  // namespace

models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict) {
  if (is_strict) return {.allow_non_finite = true};
  models::LoadSettings settings{.allow_missing = config.model.allow_missing,
                                .allow_unexpected = config.model.allow_unexpected,
                                .resize_embeddings = config.model.resize_embeddings,
                                .seed = static_cast<uint64_t>(config.training.seed)};
  if (lora && !lora->adapter.empty()) {
    settings.allow_missing.insert(settings.allow_missing.end(), lora->modules_to_save.begin(),
                                  lora->modules_to_save.end());
    settings.resize_embeddings |= lora->vocabulary_rows > 0;
  }
  return settings;
}

void check_new_weights(const models::LoadResult& loaded_weights, bool with_lora,
                       const std::filesystem::path& checkpoint) {
  for (const auto* parameters : {&loaded_weights.initialized, &loaded_weights.resized}) {
    for (const auto& parameter : *parameters) {
      if (!with_lora || parameter.in_modules_to_save || !nn::is_trainable(parameter.component)) continue;
      throw usage_error(
          "{} has no {} of the size that config.json asks for, and with LoRA new weights are not kept; name its "
          "module in lora.modules_to_save",
          checkpoint.string(), parameter.name);
    }
  }
  if (!loaded_weights.initialized.empty()) {
    spdlog::warn("{} lacks {} of the weights, which start at random (model.allow_missing): {}", checkpoint.string(),
                 loaded_weights.initialized.size(), format_list(loaded_weights.initialized));
  }
  if (!loaded_weights.resized.empty()) {
    spdlog::warn("{} has another number of rows in {} of the weights (model.resize_embeddings): {}",
                 checkpoint.string(), loaded_weights.resized.size(), format_list(loaded_weights.resized));
  }
  if (!loaded_weights.skipped.empty()) {
    spdlog::warn("{} has {} tensors more, which are left out (model.allow_unexpected): {}", checkpoint.string(),
                 loaded_weights.skipped.size(), format_list(loaded_weights.skipped));
  }
}

}  // namespace vlmtrain::train

#include "models/processing/preprocessor_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "models/processing/processor_copies.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

PreprocessorConfig::PreprocessorConfig(nlohmann::json config, std::string name)
    : config_(std::move(config)), name_(std::move(name)) {
  if (!config_.is_object()) throw data_error("{}: not a JSON object; take the checkpoint's own file", name_);
}

std::optional<PreprocessorConfig> PreprocessorConfig::find_in(const std::filesystem::path& folder) {
  const auto found = find_copies(folder, MediaRole::kImages);
  if (found.empty()) return std::nullopt;
  report_other_copies(found);
  return PreprocessorConfig(found.front().settings, found.front().name);
}

std::optional<PreprocessorConfig> PreprocessorConfig::find_for_videos(const std::filesystem::path& folder) {
  const auto found = find_copies(folder, MediaRole::kVideos);
  if (found.empty()) return find_in(folder);
  report_other_copies(found);
  return PreprocessorConfig(found.front().settings, found.front().name);
}

bool PreprocessorConfig::is_null(std::string_view key) const {
  const auto found = config_.find(std::string(key));
  return found != config_.end() && found->is_null();
}

const nlohmann::json* PreprocessorConfig::find(std::string_view key) const {
  const auto found = config_.find(std::string(key));
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

std::string PreprocessorConfig::type(std::string_view fallback, const std::vector<std::string_view>& known) const {
  std::string first(fallback);
  for (const std::string_view key : {"feature_extractor_type", "image_processor_type"}) {
    if (find(key) == nullptr) continue;
    auto type = value<std::string>(key, "");
    if (type.ends_with("Fast")) type.resize(type.size() - 4);
    if (std::ranges::find(known, type) == known.end()) {
      throw data_error("{}: {} is {}; a checkpoint of this family has {}", name_, key, type, fmt::join(known, " or "));
    }
    first = type;
  }
  return first;
}

image::Filter PreprocessorConfig::filter(int64_t fallback) const {
  const auto resample = value<int64_t>("resample", fallback);
  switch (resample) {
    case 1:
      return image::Filter::kLanczos;
    case 2:
      return image::Filter::kBilinear;
    case 3:
      return image::Filter::kBicubic;
    default:
      throw data_error("{}: resample is {}; supported are 1 (Lanczos), 2 (bilinear) and 3 (bicubic)", name_, resample);
  }
}

image::Normalization PreprocessorConfig::normalization(const Triple& mean, const Triple& std) const {
  const image::Normalization read{.mean = value("image_mean", mean),
                                  .std = value("image_std", std),
                                  .rescale_factor = value("rescale_factor", 1.0 / 255.0)};
  constexpr double kMost = 1e6;
  const auto scales = [](double value) { return value > 1 / kMost && value <= kMost; };
  const auto shifts = [](double value) { return std::abs(value) <= kMost; };
  const bool plausible =
      std::ranges::all_of(read.std, scales) && scales(read.rescale_factor) && std::ranges::all_of(read.mean, shifts);
  if (!plausible) {
    throw data_error(
        "{}: image_mean is [{}], image_std [{}], rescale_factor {}; the last two are above 0, and none is beyond {:g}: "
        "take the checkpoint's own file",
        name_, fmt::join(read.mean, ", "), fmt::join(read.std, ", "), read.rescale_factor, kMost);
  }
  return read;
}

void PreprocessorConfig::require_true(std::string_view key) const {
  if (!value<bool>(key, true)) throw data_error("{}: {} is false, which is not supported; set it to true", name_, key);
}

void PreprocessorConfig::require_no_others(const std::set<std::string_view>& known) const {
  for (const auto& [key, setting] : config_.items()) {
    if (known.contains(key) || setting.is_null() || setting == false) continue;
    throw data_error("{}: {} is {}, a setting that is not supported; remove it if the pictures do not depend on it",
                     name_, key, io::json_excerpt(setting));
  }
}

}  // namespace vlmtrain::models

#include "models/processing/preprocessor_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

PreprocessorConfig::PreprocessorConfig(nlohmann::json config, std::string name)
    : config_(std::move(config)), name_(std::move(name)) {
  if (!config_.is_object()) throw config_error("{}: not a JSON object", name_);
}

std::optional<PreprocessorConfig> PreprocessorConfig::find_for_images(const std::filesystem::path& folder) {
  const auto settings_copies = find_settings_copies(folder, MediaRole::kImages);
  if (settings_copies.empty()) return std::nullopt;
  warn_about_conflicting_copies(settings_copies);
  return PreprocessorConfig(settings_copies.front().settings, settings_copies.front().name);
}

std::optional<PreprocessorConfig> PreprocessorConfig::find_for_videos(const std::filesystem::path& folder) {
  const auto settings_copies = find_settings_copies(folder, MediaRole::kVideos);
  if (settings_copies.empty()) return find_for_images(folder);
  warn_about_conflicting_copies(settings_copies);
  return PreprocessorConfig(settings_copies.front().settings, settings_copies.front().name);
}

bool PreprocessorConfig::is_null(std::string_view key) const {
  const auto it = config_.find(std::string(key));
  return it != config_.end() && it->is_null();
}

const nlohmann::json* PreprocessorConfig::find(std::string_view key) const {
  const auto it = config_.find(std::string(key));
  return it == config_.end() || it->is_null() ? nullptr : &*it;
}

std::string PreprocessorConfig::get_processor_type(std::string_view fallback,
                                                   const std::vector<std::string_view>& allowed) const {
  std::string result(fallback);
  for (const std::string_view key : {"feature_extractor_type", "image_processor_type"}) {
    if (find(key) == nullptr) continue;
    auto type = value<std::string>(key, "");
    if (type.ends_with("Fast")) type.resize(type.size() - 4);
    if (std::ranges::find(allowed, type) == allowed.end()) {
      throw data_error("{}: {} is {}; in a checkpoint of this family it must be {}", name_, key, type,
                       fmt::join(allowed, " or "));
    }
    result = type;
  }
  return result;
}

image::ResampleFilter PreprocessorConfig::get_resample_filter(int64_t fallback) const {
  const auto pil_resample = value<int64_t>("resample", fallback);
  switch (pil_resample) {
    case 1:
      return image::ResampleFilter::kLanczos;
    case 2:
      return image::ResampleFilter::kBilinear;
    case 3:
      return image::ResampleFilter::kBicubic;
    default:
      throw data_error("{}: resample is {}; supported: 1 (Lanczos), 2 (bilinear), 3 (bicubic)", name_, pil_resample);
  }
}

image::Normalization PreprocessorConfig::get_normalization(const ChannelValues& mean, const ChannelValues& std) const {
  const image::Normalization result{.mean = value("image_mean", mean),
                                    .std = value("image_std", std),
                                    .rescale_factor = value("rescale_factor", 1.0 / 255.0)};
  // Means and standard deviations of pixels are below 256. 1e6 rejects only damaged files.
  constexpr double kMaxNormalizationValue = 1e6;
  const auto is_valid_scale = [](double value) {
    return value > 1 / kMaxNormalizationValue && value <= kMaxNormalizationValue;
  };
  const auto is_valid_shift = [](double value) { return std::abs(value) <= kMaxNormalizationValue; };
  const bool is_plausible = std::ranges::all_of(result.std, is_valid_scale) && is_valid_scale(result.rescale_factor) &&
                            std::ranges::all_of(result.mean, is_valid_shift);
  if (!is_plausible) {
    throw config_error(
        "{}: image_mean is [{}], image_std [{}], rescale_factor {}; the last two must be above 0, and all at most {:g}",
        name_, fmt::join(result.mean, ", "), fmt::join(result.std, ", "), result.rescale_factor,
        kMaxNormalizationValue);
  }
  return result;
}

void PreprocessorConfig::check_key_is_true(std::string_view key) const {
  if (!value<bool>(key, true)) throw data_error("{}: {} is false, which is not supported; set it to true", name_, key);
}

void PreprocessorConfig::check_equals_config(std::string_view key, int64_t expected, std::string_view section) const {
  const auto actual = value<int64_t>(key, expected);
  if (actual == expected) return;
  throw data_error("{}: {} is {}, but config.json's {} has {}; they must be equal", name_, key, actual, section,
                   expected);
}

void PreprocessorConfig::reject_other_keys(const std::set<std::string_view>& allowed) const {
  for (const auto& [key, setting] : config_.items()) {
    if (allowed.contains(key) || setting.is_null() || setting == false) continue;
    throw data_error("{}: {} is {}, which is not supported; remove the key if it does not affect the pixels", name_,
                     key, io::make_json_excerpt(setting));
  }
}

UserError make_missing_image_config_error(const std::filesystem::path& folder) {
  return data_error(
      "{}: has neither preprocessor_config.json nor a section image_processor in processor_config.json; copy the "
      "checkpoint's file there",
      folder.string());
}

void check_num_image_tokens(const std::filesystem::path& folder, const std::string& key, int64_t features) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto tokens = io::get_or<int64_t>(io::read_json(path), key, features, path.string());
  if (tokens == features) return;
  throw data_error("{}: {} is {}, but the model of config.json produces {} features per image; make them equal",
                   path.string(), key, tokens, features);
}

void warn_if_frame_rate_differs(const std::filesystem::path& folder, double fps) {
  static std::mutex mutex;
  static std::set<std::string> reported_files;
  if (fps != ProcessorSettings().video_fps) return;
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file || file->find("fps") == nullptr || file->find("num_frames") != nullptr) return;
  const auto file_fps = file->value<double>("fps", fps);
  const std::lock_guard lock(mutex);
  if (file_fps == fps || !reported_files.insert(file->name()).second) return;
  spdlog::warn(
      "{}: fps is {}, but videos are sampled at {}, {} frames per second; set {}={} to use the value of the file",
      file->name(), file_fps, keys::data::kVideoFps, fps, keys::data::kVideoFps, file_fps);
}

namespace {

using nlohmann::json;

std::optional<ProcessorSettingsCopy> read_processor_config_section(const std::filesystem::path& folder,
                                                                   const char* section) {
  constexpr const char* kProcessorConfigFile = "processor_config.json";
  const auto path = folder / kProcessorConfigFile;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const json config = io::read_json(path);
  if (!config.is_object() || !config.contains(section) || config[section].is_null()) return std::nullopt;
  return ProcessorSettingsCopy{.file = kProcessorConfigFile,
                               .section = section,
                               .name = fmt::format("{} ({})", path.string(), section),
                               .settings = config[section]};
}

std::optional<ProcessorSettingsCopy> read_settings_file(const std::filesystem::path& folder, const char* file) {
  const auto path = folder / file;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return ProcessorSettingsCopy{.file = file, .section = "", .name = path.string(), .settings = io::read_json(path)};
}

bool is_class_name_key(std::string_view key) {
  constexpr std::array<std::string_view, 7> kClassNameKeys{"image_processor_type",   "video_processor_type",
                                                           "feature_extractor_type", "processor_class",
                                                           "_processor_class",       "auto_map",
                                                           "_valid_processor_keys"};
  return std::ranges::find(kClassNameKeys, key) != kClassNameKeys.end();
}

/// Returns whether two values may be compared. Sizes may have the keys {"min_pixels", "max_pixels"}
/// in one copy and {"shortest_edge", "longest_edge"} in the other, with different meanings.
bool have_same_keys(const json& a, const json& b) {
  if (!a.is_object() || !b.is_object()) return a.is_object() == b.is_object();
  return std::ranges::all_of(a.items(), [&](const auto& item) { return b.contains(item.key()); });
}

}  // namespace

std::vector<ProcessorSettingsCopy> find_settings_copies(const std::filesystem::path& folder, MediaRole role) {
  const bool is_video = role == MediaRole::kVideos;
  std::vector<ProcessorSettingsCopy> copies;
  const auto add = [&](std::optional<ProcessorSettingsCopy> copy) {
    if (copy) copies.push_back(*std::move(copy));
  };
  add(read_processor_config_section(folder, is_video ? "video_processor" : "image_processor"));
  add(read_settings_file(folder, is_video ? "video_preprocessor_config.json" : "preprocessor_config.json"));
  if (is_video && copies.empty()) add(read_settings_file(folder, "preprocessor_config.json"));
  return copies;
}

std::vector<std::string> find_differing_keys(const json& a, const json& b) {
  std::vector<std::string> keys;
  if (!a.is_object() || !b.is_object()) return keys;
  for (const auto& [key, value] : a.items()) {
    const auto it = b.find(key);
    if (it == b.end() || is_class_name_key(key) || *it == value || !have_same_keys(value, *it)) continue;
    keys.push_back(key);
  }
  return keys;
}

void warn_about_conflicting_copies(const std::vector<ProcessorSettingsCopy>& copies) {
  static std::mutex mutex;
  static std::set<std::string> reported_copies;
  for (size_t i = 1; i < copies.size(); ++i) {
    const auto keys = find_differing_keys(copies.front().settings, copies[i].settings);
    if (keys.empty()) continue;
    const std::lock_guard lock(mutex);
    if (!reported_copies.insert(copies[i].name).second) continue;
    spdlog::warn(
        "{}: has other values than {}, which takes precedence as in transformers 5: {}; remove it, or make them equal",
        copies[i].name, copies.front().name, fmt::join(keys, ", "));
  }
}

}  // namespace vlmtrain::models

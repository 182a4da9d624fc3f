#include "models/processing/processor_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

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

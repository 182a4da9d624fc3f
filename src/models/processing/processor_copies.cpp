#include "models/processing/processor_copies.h"

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

std::optional<ProcessorCopy> shared_section(const std::filesystem::path& folder, const char* section) {
  constexpr const char* kShared = "processor_config.json";
  const auto path = folder / kShared;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const json config = io::read_json(path);
  if (!config.is_object() || !config.contains(section) || config[section].is_null()) return std::nullopt;
  return ProcessorCopy{.file = kShared,
                       .section = section,
                       .name = fmt::format("{} ({})", path.string(), section),
                       .settings = config[section]};
}

std::optional<ProcessorCopy> file_of(const std::filesystem::path& folder, const char* file) {
  const auto path = folder / file;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return ProcessorCopy{.file = file, .section = "", .name = path.string(), .settings = io::read_json(path)};
}

bool names_a_class(std::string_view key) {
  constexpr std::array<std::string_view, 7> kClasses{"image_processor_type",   "video_processor_type",
                                                     "feature_extractor_type", "processor_class",
                                                     "_processor_class",       "auto_map",
                                                     "_valid_processor_keys"};
  return std::ranges::find(kClasses, key) != kClasses.end();
}

/// {"min_pixels", "max_pixels"} next to {"shortest_edge", "longest_edge"}.
bool are_spelled_alike(const json& one, const json& other) {
  if (!one.is_object() || !other.is_object()) return one.is_object() == other.is_object();
  return std::ranges::all_of(one.items(), [&](const auto& item) { return other.contains(item.key()); });
}

}  // namespace

std::vector<ProcessorCopy> find_copies(const std::filesystem::path& folder, MediaRole role) {
  const bool is_video = role == MediaRole::kVideos;
  std::vector<ProcessorCopy> copies;
  const auto add = [&](std::optional<ProcessorCopy> copy) {
    if (copy) copies.push_back(*std::move(copy));
  };
  add(shared_section(folder, is_video ? "video_processor" : "image_processor"));
  add(file_of(folder, is_video ? "video_preprocessor_config.json" : "preprocessor_config.json"));
  if (is_video && copies.empty()) add(file_of(folder, "preprocessor_config.json"));
  return copies;
}

std::vector<std::string> differing_keys(const json& one, const json& other) {
  std::vector<std::string> keys;
  if (!one.is_object() || !other.is_object()) return keys;
  for (const auto& [key, value] : one.items()) {
    const auto found = other.find(key);
    if (found == other.end() || names_a_class(key) || *found == value || !are_spelled_alike(value, *found)) continue;
    keys.push_back(key);
  }
  return keys;
}

void report_other_copies(const std::vector<ProcessorCopy>& copies) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  for (size_t other = 1; other < copies.size(); ++other) {
    const auto keys = differing_keys(copies.front().settings, copies[other].settings);
    if (keys.empty()) continue;
    const std::lock_guard lock(mutex);
    if (!reported.insert(copies[other].name).second) continue;
    spdlog::warn("{}: has other values than {}, which counts, as in transformers 5: {}; remove it, or make them equal",
                 copies[other].name, copies.front().name, fmt::join(keys, ", "));
  }
}

}  // namespace vlmtrain::models

#include "vlmtrain/train/media_options_of_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

namespace {

std::vector<std::string> extract_media_settings(const nlohmann::ordered_json& values) {
  std::vector<std::string> settings;
  for (const std::string_view key : kMediaKeys) {
    if (const std::string name(key); values.contains(name)) {
      settings.push_back(fmt::format("{}={}", name, get_setting_text(values, name)));
    }
  }
  return settings;
}

/// Calls `callback` with each key, its value in `options` and its default.
template <class Callback>
void compare_with_defaults(const data::DataOptions& options, const Callback& callback) {
  data::DataOptions current = options, defaults;
  OptionTable current_table, default_table;
  data::declare(current_table, current);
  data::declare(default_table, defaults);
  for (const std::string_view key : kMediaKeys)
    callback(key, current_table.format_value(key), default_table.format_value(key));
}

}  // namespace

std::string format_media_settings(const data::DataOptions& options) {
  nlohmann::ordered_json non_default;
  compare_with_defaults(options, [&](std::string_view key, const std::string& current, const std::string& defaults) {
    if (current != defaults) non_default[std::string(key)] = current;
  });
  return non_default.empty() ? "" : io::to_json_string(non_default, 2) + "\n";
}

std::vector<std::string> load_media_settings(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kMediaSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: not a JSON object of settings; copy it again", file.string());
    return extract_media_settings(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return extract_media_settings(load_run_state(checkpoint).fingerprint);
}

std::vector<std::string> apply_saved_media_settings(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                    const std::vector<std::string>& explicit_keys) {
  const auto saved_settings = load_media_settings(checkpoint);
  std::vector<std::string> applied;
  compare_with_defaults(options, [&](std::string_view key, const std::string& current, const std::string& defaults) {
    const std::string prefix = fmt::format("{}=", key);
    const auto saved =
        std::ranges::find_if(saved_settings, [&](const std::string& setting) { return setting.starts_with(prefix); });
    const bool is_explicit = std::ranges::find(explicit_keys, key) != explicit_keys.end();
    if (!is_explicit && current == defaults && saved != saved_settings.end() && *saved != prefix + defaults)
      applied.push_back(*saved);
  });
  OptionTable table;
  data::declare(table, options);
  table.read({}, applied);
  return applied;
}

ParsedMediaSettings parse_media_settings(const std::vector<std::string>& settings, data::DataOptions& options) {
  ParsedMediaSettings result;
  std::vector<std::string> media_settings;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    const bool is_media = std::ranges::find(kMediaKeys, key) != std::end(kMediaKeys);
    (is_media ? media_settings : result.other_settings).push_back(setting);
    if (is_media) result.keys.push_back(key);
  }
  OptionTable table;
  data::declare(table, options);
  table.read({}, media_settings);
  return result;
}

}  // namespace vlmtrain::train

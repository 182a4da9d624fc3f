#include "vlmtrain/train/volume_options_of_run.h"

#include <fmt/format.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

namespace {

constexpr std::string_view kSection = "data.volume.";

/// key=value of each that lies in the section.
std::vector<std::string> extract_volume_settings(const nlohmann::ordered_json& values) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : values.items()) {
    if (key.starts_with(kSection)) settings.push_back(fmt::format("{}={}", key, get_setting_text(values, key)));
  }
  return settings;
}

std::vector<std::string> load_volume_settings(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kVolumeSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: is no JSON object of settings; copy it again", file.string());
    return extract_volume_settings(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return extract_volume_settings(load_run_state(checkpoint).fingerprint);
}

}  // namespace

std::string format_volume_settings(const data::VolumeOptions& options) {
  data::VolumeOptions current = options, defaults;
  OptionTable current_table, default_table;
  data::declare(current_table, current);
  data::declare(default_table, defaults);
  nlohmann::ordered_json non_default;
  for (const auto policy : {ChangePolicy::kIfRequested, ChangePolicy::kAllowed}) {
    for (const std::string_view key : get_keys_with_policy(policy)) {
      if (!key.starts_with(kSection) || current_table.format_value(key) == default_table.format_value(key)) continue;
      non_default[std::string(key)] = current_table.format_value(key);
    }
  }
  return non_default.empty() ? "" : io::to_json_string(non_default, 2) + "\n";
}

data::VolumeOptions load_volume_options(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& overrides) {
  data::VolumeOptions options;
  OptionTable table;
  data::declare(table, options);
  auto settings = load_volume_settings(checkpoint);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  table.read({}, settings);
  return options;
}

}  // namespace vlmtrain::train

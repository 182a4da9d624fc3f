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
std::vector<std::string> settings_in(const nlohmann::ordered_json& values) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : values.items()) {
    if (key.starts_with(kSection)) settings.push_back(fmt::format("{}={}", key, text_in(values, key)));
  }
  return settings;
}

std::vector<std::string> settings_of(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kVolumeSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: is no JSON object of settings; copy it again", file.string());
    return settings_in(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return settings_in(load_run_state(checkpoint).fingerprint);
}

}  // namespace

std::string volume_settings_text(const data::VolumeOptions& options) {
  data::VolumeOptions own = options, usual;
  OptionTable of_own, of_usual;
  data::declare(of_own, own);
  data::declare(of_usual, usual);
  nlohmann::ordered_json changed;
  for (const auto how : {MayChange::kOnPurpose, MayChange::kFreely}) {
    for (const std::string_view key : keys_that_change(how)) {
      if (!key.starts_with(kSection) || of_own.value_of(key) == of_usual.value_of(key)) continue;
      changed[std::string(key)] = of_own.value_of(key);
    }
  }
  return changed.empty() ? "" : io::json_text(changed, 2) + "\n";
}

data::VolumeOptions volume_options_of_run(const std::filesystem::path& checkpoint,
                                          const std::vector<std::string>& overrides) {
  data::VolumeOptions options;
  OptionTable table;
  data::declare(table, options);
  auto settings = settings_of(checkpoint);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  table.read({}, settings);
  return options;
}

}  // namespace vlmtrain::train

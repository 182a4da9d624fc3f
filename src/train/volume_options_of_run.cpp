#include "vlmtrain/train/volume_options_of_run.h"

#include <fmt/format.h>

#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

data::VolumeOptions volume_options_of_run(const std::filesystem::path& checkpoint,
                                          const std::vector<std::string>& overrides) {
  constexpr std::string_view kSection = "data.volume.";
  data::VolumeOptions options;
  OptionTable table;
  data::declare(table, options);
  std::vector<std::string> settings;
  std::error_code error;
  if (std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) {
    const auto fingerprint = load_run_state(checkpoint).fingerprint;
    for (const auto& [key, value] : fingerprint.items()) {
      if (key.starts_with(kSection)) settings.push_back(fmt::format("{}={}", key, text_in(fingerprint, key)));
    }
  }
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  table.read({}, settings);
  return options;
}

}  // namespace vlmtrain::train

#include "vlmtrain/train/record_settings_of_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "vlmtrain/data/options.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

bool is_record_setting(std::string_view setting) {
  constexpr std::array kPrefixes =
      std::to_array<std::string_view>({"data.columns=", "data.columns.", "data.ignore_keys=", "data.image_root="});
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return setting.starts_with(prefix); });
}

}  // namespace

std::vector<std::string> extract_record_settings(std::vector<std::string>& settings) {
  std::vector<std::string> extracted;
  std::ranges::copy_if(settings, std::back_inserter(extracted), is_record_setting);
  std::erase_if(settings, is_record_setting);
  return extracted;
}

io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings) {
  std::vector<std::string> all_settings;
  std::error_code error;
  if (std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) {
    const nlohmann::ordered_json fingerprint = load_run_state(checkpoint).fingerprint;
    const std::string key = "data.ignore_keys";
    if (fingerprint.contains(key))
      all_settings.push_back(fmt::format("{}={}", key, get_setting_text(fingerprint, key)));
  }
  all_settings.insert(all_settings.end(), settings.begin(), settings.end());
  data::DataOptions options;
  OptionTable table;
  data::declare(table, options);
  table.read({}, all_settings);
  return make_record_settings(options);
}

}  // namespace vlmtrain::train

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
  constexpr std::array kBegins =
      std::to_array<std::string_view>({"data.columns=", "data.columns.", "data.ignore_keys=", "data.image_root="});
  return std::ranges::any_of(kBegins, [&](std::string_view begin) { return setting.starts_with(begin); });
}

}  // namespace

std::vector<std::string> take_record_settings(std::vector<std::string>& settings) {
  std::vector<std::string> taken;
  std::ranges::copy_if(settings, std::back_inserter(taken), is_record_setting);
  std::erase_if(settings, is_record_setting);
  return taken;
}

io::RecordSettings record_settings_of_run(const std::filesystem::path& checkpoint,
                                          const std::vector<std::string>& settings) {
  std::vector<std::string> all;
  std::error_code error;
  if (std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) {
    const nlohmann::ordered_json fingerprint = load_run_state(checkpoint).fingerprint;
    const std::string key = "data.ignore_keys";
    if (fingerprint.contains(key)) all.push_back(fmt::format("{}={}", key, text_in(fingerprint, key)));
  }
  all.insert(all.end(), settings.begin(), settings.end());
  data::DataOptions options;
  OptionTable table;
  data::declare(table, options);
  table.read({}, all);
  return record_settings(options);
}

}  // namespace vlmtrain::train

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

std::vector<std::string> media_settings_in(const nlohmann::ordered_json& values) {
  std::vector<std::string> settings;
  for (const std::string_view key : kMediaKeys) {
    if (const std::string name(key); values.contains(name)) {
      settings.push_back(fmt::format("{}={}", name, text_in(values, name)));
    }
  }
  return settings;
}

/// Calls `use` with each key, its value in `options` and its default.
template <class Use>
void compare_with_defaults(const data::DataOptions& options, const Use& use) {
  data::DataOptions own = options, usual;
  OptionTable of_own, of_usual;
  data::declare(of_own, own);
  data::declare(of_usual, usual);
  for (const std::string_view key : kMediaKeys) use(key, of_own.value_of(key), of_usual.value_of(key));
}

}  // namespace

std::string media_settings_text(const data::DataOptions& options) {
  nlohmann::ordered_json changed;
  compare_with_defaults(options, [&](std::string_view key, const std::string& own, const std::string& usual) {
    if (own != usual) changed[std::string(key)] = own;
  });
  return changed.empty() ? "" : io::json_text(changed, 2) + "\n";
}

std::vector<std::string> media_settings_of_run(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kMediaSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: not a JSON object of settings; copy it again", file.string());
    return media_settings_in(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return media_settings_in(load_run_state(checkpoint).fingerprint);
}

std::vector<std::string> take_media_options_of_run(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                   const std::vector<std::string>& given) {
  const auto of_run = media_settings_of_run(checkpoint);
  std::vector<std::string> taken;
  compare_with_defaults(options, [&](std::string_view key, const std::string& own, const std::string& usual) {
    const std::string begin = fmt::format("{}=", key);
    const auto found = std::ranges::find_if(of_run, [&](const std::string& one) { return one.starts_with(begin); });
    const bool is_given = std::ranges::find(given, key) != given.end();
    if (!is_given && own == usual && found != of_run.end() && *found != begin + usual) taken.push_back(*found);
  });
  OptionTable table;
  data::declare(table, options);
  table.read({}, taken);
  return taken;
}

GivenMediaSettings read_media_settings(const std::vector<std::string>& settings, data::DataOptions& options) {
  GivenMediaSettings given;
  std::vector<std::string> own;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    const bool is_media = std::ranges::find(kMediaKeys, key) != std::end(kMediaKeys);
    (is_media ? own : given.others).push_back(setting);
    if (is_media) given.keys.push_back(key);
  }
  OptionTable table;
  data::declare(table, options);
  table.read({}, own);
  return given;
}

}  // namespace vlmtrain::train

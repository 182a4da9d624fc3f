#include "vlmtrain/train/saved_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/options.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

namespace {

/// Returns the settings of kMediaSettingKeys in `values`, each as key=value.
std::vector<std::string> collect_media_settings(const nlohmann::ordered_json& values) {
  std::vector<std::string> settings;
  for (const std::string_view key : kMediaSettingKeys) {
    if (const std::string name(key); values.contains(name)) {
      settings.push_back(fmt::format("{}={}", name, format_setting_value(values, name)));
    }
  }
  return settings;
}

/// Calls `callback` with each key of kMediaSettingKeys, its value in `options` and its default
/// value, as text.
template <class Callback>
void for_each_media_setting(const data::DataOptions& options, const Callback& callback) {
  data::DataOptions current = options, defaults;
  OptionTable current_table, default_table;
  data::declare_options(current_table, current);
  data::declare_options(default_table, defaults);
  for (const std::string_view key : kMediaSettingKeys)
    callback(key, current_table.format_value(key), default_table.format_value(key));
}

}  // namespace

std::string format_media_settings(const data::DataOptions& options) {
  nlohmann::ordered_json non_default_values;
  for_each_media_setting(options, [&](std::string_view key, const std::string& current, const std::string& defaults) {
    if (current != defaults) non_default_values[std::string(key)] = current;
  });
  return non_default_values.empty() ? "" : io::to_json_string(non_default_values, 2) + "\n";
}

std::vector<std::string> load_media_settings(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kMediaSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: is not a JSON object of settings; copy it again", file.string());
    return collect_media_settings(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return collect_media_settings(load_run_state(checkpoint).fingerprint);
}

std::vector<std::string> apply_saved_media_settings(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                    const std::vector<std::string>& explicit_keys) {
  const auto saved_settings = load_media_settings(checkpoint);
  std::vector<std::string> applied_settings;
  for_each_media_setting(options, [&](std::string_view key, const std::string& current, const std::string& defaults) {
    const std::string prefix = fmt::format("{}=", key);
    const auto saved =
        std::ranges::find_if(saved_settings, [&](const std::string& setting) { return setting.starts_with(prefix); });
    const bool is_explicit = std::ranges::find(explicit_keys, key) != explicit_keys.end();
    if (!is_explicit && current == defaults && saved != saved_settings.end() && *saved != prefix + defaults)
      applied_settings.push_back(*saved);
  });
  OptionTable table;
  data::declare_options(table, options);
  table.read({}, applied_settings);
  return applied_settings;
}

ParsedMediaSettings parse_media_settings(const std::vector<std::string>& settings, data::DataOptions& options) {
  ParsedMediaSettings result;
  std::vector<std::string> media_settings;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    const bool is_media_setting = std::ranges::find(kMediaSettingKeys, key) != std::end(kMediaSettingKeys);
    (is_media_setting ? media_settings : result.other_settings).push_back(setting);
    if (is_media_setting) result.media_keys.push_back(key);
  }
  OptionTable table;
  data::declare_options(table, options);
  table.read({}, media_settings);
  return result;
}

namespace {

/// Returns the settings of data.volume in `values`, each as key=value.
std::vector<std::string> collect_volume_settings(const nlohmann::ordered_json& values) {
  data::VolumeOptions options;
  OptionTable table;
  data::declare_options(table, options);
  std::vector<std::string> settings;
  for (const auto& [key, value] : values.items()) {
    if (table.find_resume_rule(key)) settings.push_back(fmt::format("{}={}", key, format_setting_value(values, key)));
  }
  return settings;
}

/// Returns the volume settings of the model in `checkpoint`, each as key=value; empty if it has
/// none.
std::vector<std::string> load_volume_settings(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto file = checkpoint / kVolumeSettingsFile;
  if (std::filesystem::exists(file, error)) {
    const nlohmann::ordered_json values = io::read_json(file);
    if (!values.is_object()) throw data_error("{}: is not a JSON object of settings; copy it again", file.string());
    return collect_volume_settings(values);
  }
  if (!std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) return {};
  return collect_volume_settings(load_run_state(checkpoint).fingerprint);
}

}  // namespace

std::string format_volume_settings(const data::VolumeOptions& options) {
  data::VolumeOptions current = options, defaults;
  OptionTable current_table, default_table;
  data::declare_options(current_table, current);
  data::declare_options(default_table, defaults);
  nlohmann::ordered_json non_default_values;
  for (const auto rule : {ResumeRule::kIfRequested, ResumeRule::kFree}) {
    for (const std::string& key : current_table.list_keys(rule)) {
      if (current_table.format_value(key) == default_table.format_value(key)) continue;
      non_default_values[key] = current_table.format_value(key);
    }
  }
  return non_default_values.empty() ? "" : io::to_json_string(non_default_values, 2) + "\n";
}

data::VolumeOptions resolve_volume_options(const std::filesystem::path& checkpoint,
                                           const std::vector<std::string>& overrides) {
  data::VolumeOptions options;
  OptionTable table;
  data::declare_options(table, options);
  auto settings = load_volume_settings(checkpoint);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  table.read({}, settings);
  return options;
}

namespace {

/// Returns whether `setting` (key=value) determines how records are read.
bool is_record_setting(std::string_view setting) {
  constexpr std::array kRecordKeys{keys::data::kColumns, keys::data::kIgnoreKeys, keys::data::kImageRoot,
                                   keys::data::kBoxesIn, keys::data::kBoxesPattern};
  const std::string_view key = setting.substr(0, setting.find('='));
  // data.columns.answer=A sets one entry of data.columns.
  if (key.starts_with(keys::data::kColumns) && key.substr(keys::data::kColumns.size()).starts_with('.')) return true;
  return std::ranges::find(kRecordKeys, key) != kRecordKeys.end();
}

}  // namespace

std::vector<std::string> extract_record_settings(std::vector<std::string>& settings) {
  std::vector<std::string> extracted_settings;
  std::ranges::copy_if(settings, std::back_inserter(extracted_settings), is_record_setting);
  std::erase_if(settings, is_record_setting);
  return extracted_settings;
}

io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings) {
  std::vector<std::string> all_settings;
  std::error_code error;
  if (std::filesystem::exists(checkpoint / "trainer_state" / "state.json", error)) {
    const nlohmann::ordered_json fingerprint = load_run_state(checkpoint).fingerprint;
    for (const std::string_view key : {keys::data::kIgnoreKeys, keys::data::kBoxesIn, keys::data::kBoxesPattern}) {
      if (const std::string name(key); fingerprint.contains(name))
        all_settings.push_back(fmt::format("{}={}", name, format_setting_value(fingerprint, name)));
    }
  }
  all_settings.insert(all_settings.end(), settings.begin(), settings.end());
  data::DataOptions options;
  OptionTable table;
  data::declare_options(table, options);
  table.read({}, all_settings);
  return make_record_settings(options);
}

namespace fs = std::filesystem;

void resolve_chat_template_date(data::DataOptions& data, const std::optional<fs::path>& checkpoint) {
  if (data.chat_template_date != "auto") return;
  std::error_code error;
  if (!checkpoint || !fs::exists(*checkpoint / "trainer_state" / "state.json", error)) {
    data.chat_template_date = get_current_date();
    return;
  }
  const std::string date = format_setting_value(load_run_state(*checkpoint).fingerprint, keys::data::kChatTemplateDate);
  if (!date.empty()) data.chat_template_date = date;
}

void resolve_run_chat_template_date(data::DataOptions& data, const fs::path& run_dir) {
  try {
    resolve_chat_template_date(data, run_dir.empty() ? std::nullopt : find_newest_checkpoint(run_dir));
  } catch (const UserError&) {
    return;  // the start of the run reports the error of the checkpoint
  } catch (const fs::filesystem_error&) {
    return;  // the start of the run reports the error of the folder
  }
}

namespace {

bool contains_key(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// Returns whether a fingerprint has kTotalStepsKey instead of `key`.
bool determines_total_steps(std::string_view key) {
  return key == keys::training::kMaxSteps || key == keys::training::kEpochs;
}

std::string to_text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : io::to_json_string(value);
}

std::vector<std::string> format_setting_changes(const std::vector<SettingChange>& changes) {
  std::vector<std::string> texts;
  texts.reserve(changes.size());
  for (const auto& change : changes) texts.push_back(change.text());
  return texts;
}

/// Returns advice for starting a new run from the weights of `checkpoint`.
std::string format_new_run_advice(const std::filesystem::path& checkpoint) {
  const std::string path = checkpoint.string();
  if (!models::is_adapter(checkpoint)) {
    return fmt::format("start a new run from these weights in another {}, with {}={}", keys::output::kDir,
                       keys::model::kPath, path);
  }
  return fmt::format(
      "start a new run in another {1}: {2}={0} without a lora section continues this adapter; `vlmtrain merge "
      "--adapter {0} --out FOLDER` merges it into a checkpoint for {3}=FOLDER",
      path, keys::output::kDir, keys::model::kAdapter, keys::model::kPath);
}

}  // namespace

nlohmann::ordered_json make_run_fingerprint(const Config& config, int64_t num_samples) {
  Config copy = config;
  const OptionTable options = declare_options(copy);
  nlohmann::ordered_json fingerprint;
  for (const auto rule : {ResumeRule::kNever, ResumeRule::kIfRequested}) {
    for (const std::string& key : options.list_keys(rule)) {
      if (!determines_total_steps(key)) fingerprint[key] = options.format_value(key);
    }
  }
  fingerprint[kSampleCountKey] = std::to_string(num_samples);
  fingerprint[kTotalStepsKey] = std::to_string(compute_total_steps(config.training, static_cast<double>(num_samples)));
  return fingerprint;
}

std::string format_setting_value(const nlohmann::ordered_json& fingerprint, std::string_view key) {
  const auto it = fingerprint.find(std::string(key));
  return it == fingerprint.end() ? "" : to_text(*it);
}

std::string SettingChange::text() const {
  return fmt::format("{}: was {}, is {}", key, old_value, new_value);
}

std::vector<SettingChange> find_setting_changes(const nlohmann::ordered_json& saved,
                                                const nlohmann::ordered_json& current) {
  Config defaults;
  const OptionTable options = declare_options(defaults);
  std::vector<SettingChange> changes;
  for (const auto& [key, value] : current.items()) {
    const auto it = saved.find(key);
    if (it != saved.end() && *it == value) continue;
    if (it == saved.end() && key == kBaseWeightsKey) continue;  // of an older version
    const std::optional<ResumeRule> rule = options.find_resume_rule(key);
    if (it == saved.end() && rule && value == options.format_value(key)) continue;
    changes.push_back({.key = key,
                       .old_value = it == saved.end() ? "not set" : make_excerpt(to_text(*it)),
                       .new_value = make_excerpt(to_text(value)),
                       .rule = rule.value_or(ResumeRule::kIfRequested)});
  }
  return changes;
}

bool has_changed_key(const std::vector<SettingChange>& changes, std::span<const std::string_view> keys) {
  return std::ranges::any_of(changes, [&](const SettingChange& change) { return contains_key(keys, change.key); });
}

bool affects_samples(const std::vector<SettingChange>& changes) {
  static constexpr std::string_view kKeys[] = {keys::data::kTrain,
                                               keys::data::kTaskShares,
                                               keys::data::kCurriculum,
                                               keys::data::kPacking,
                                               keys::data::kPackMaxTokens,
                                               keys::data::kPackMaxImages,
                                               keys::data::kPackMaxTiles,
                                               keys::data::kTextWindowTokens,
                                               kSampleCountKey,
                                               kSampleSizesKey};
  return has_changed_key(changes, kKeys);
}

bool affects_schedule(const std::vector<SettingChange>& changes) {
  static constexpr std::string_view kKeys[] = {
      keys::training::kLearningRate,          keys::training::kVisionLearningRate,
      keys::training::kProjectorLearningRate, keys::training::kMaskLearningRate,
      keys::training::kWarmupRatio,           keys::training::kLrScheduler,
      keys::training::kScheduleFrom,          kTotalStepsKey};
  return affects_samples(changes) || has_changed_key(changes, kKeys);
}

void check_setting_changes(const std::vector<SettingChange>& changes, ResumePolicy resume_policy,
                           const std::filesystem::path& checkpoint) {
  std::vector<std::string> never_allowed_keys;
  for (const auto& change : changes) {
    if (change.rule == ResumeRule::kNever) never_allowed_keys.push_back(change.key);
  }
  if (changes.empty() || (resume_policy == ResumePolicy::kChanged && never_allowed_keys.empty())) return;
  const std::string suggestion =
      never_allowed_keys.empty()
          ? fmt::format("{}=changed resumes with the new settings (docs/how-to/resume.md)", keys::training::kResume)
          : fmt::format("{} cannot change within a run (docs/how-to/resume.md); {}",
                        fmt::join(never_allowed_keys, ", "), format_new_run_advice(checkpoint));
  throw usage_error("{}: was written with other settings; use those settings, or another {}:\n  {}\n{}",
                    checkpoint.string(), keys::output::kDir, fmt::join(format_setting_changes(changes), "\n  "),
                    suggestion);
}

void set_saved_files(models::BaseWeights& base, const Config& config, const models::Processor& processor,
                     bool has_videos) {
  base.set_chat_template(processor.chat_template().source().jinja_source);
  base.add_eos_token(processor.end_of_turn_id());
  base.set_file_content(kVolumeSettingsFile, format_volume_settings(config.data.volume));
  base.set_file_content(kMediaSettingsFile, format_media_settings(config.data));
  const auto processor_files = models::make_processor_files(
      config.model.folder(), make_processor_settings(config.data, config.model.adapter_folder()), has_videos);
  for (const auto& [name, content] : processor_files.files) base.set_file_content(name, content);
  for (const auto& setting : processor_files.unsaved_settings) {
    spdlog::warn("{}; set it in the processor when transformers runs the saved model (vlmtrain stores it in {})",
                 setting, kMediaSettingsFile);
  }
}

}  // namespace vlmtrain::train

#include "vlmtrain/train/run_changes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::train {

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
          ? fmt::format("{}=changed resumes with the new settings (docs/resuming.md)", keys::training::kResume)
          : fmt::format("{} cannot change within a run (docs/resuming.md); {}", fmt::join(never_allowed_keys, ", "),
                        format_new_run_advice(checkpoint));
  throw usage_error("{}: was written with other settings; use those settings, or another {}:\n  {}\n{}",
                    checkpoint.string(), keys::output::kDir, fmt::join(format_setting_changes(changes), "\n  "),
                    suggestion);
}

}  // namespace vlmtrain::train

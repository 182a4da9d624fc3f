#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

// Keys of a fingerprint that are not keys of the configuration. The names appear in messages.

/// The number of records.
inline constexpr const char* kSampleCountKey = "samples in data.train";
/// data::SampleOrder::fingerprint(): a hash of the sample sizes on which packs or a curriculum
/// depend.
inline constexpr const char* kSampleSizesKey = "sizes of the samples in data.train";
/// models::compute_base_fingerprint(); checkpoints of older versions lack it.
inline constexpr const char* kBaseWeightsKey = "weights in model.path";
/// compute_total_steps(), which replaces the two keys that determine it.
inline constexpr const char* kTotalStepsKey = "steps (training.max_steps or training.epochs)";

/// Returns the fingerprint of a run: the values of all keys that affect its results, as text by
/// key. A checkpoint stores it. `num_samples`: number of records in data.train. Lacks
/// kBaseWeightsKey and kSampleSizesKey, which the caller adds. Keys with ResumeRule::kFree are not
/// part of it.
nlohmann::ordered_json make_run_fingerprint(const Config& config, int64_t num_samples);

/// Returns the value of a key as text, for any JSON type; empty if it is missing.
std::string format_setting_value(const nlohmann::ordered_json& fingerprint, std::string_view key);

/// A setting whose value differs from the value in the run's checkpoint.
struct SettingChange {
  std::string key;
  std::string old_value;  ///< shortened for messages
  std::string new_value;  ///< shortened for messages
  ResumeRule rule = ResumeRule::kIfRequested;

  /// Returns for example "training.seed: was 0, is 7".
  std::string text() const;
};

/// Returns the settings of `current` that differ from `saved`, the fingerprint of a checkpoint. A
/// key that `saved` lacks counts as its default value, because the version that wrote the
/// checkpoint did not have the key.
std::vector<SettingChange> find_setting_changes(const nlohmann::ordered_json& saved,
                                                const nlohmann::ordered_json& current);

/// Returns whether one of `keys` is among `changes`.
bool has_changed_key(const std::vector<SettingChange>& changes, std::span<const std::string_view> keys);

/// Returns whether `changes` affect the samples of data.train or the order in which they are drawn.
bool affects_samples(const std::vector<SettingChange>& changes);

/// Returns whether `changes` affect the learning rate of any step. Changed samples do, since they
/// change the number of steps.
bool affects_schedule(const std::vector<SettingChange>& changes);

/// Throws UserError (kUsage) if `resume_policy` does not allow `changes`. The message lists the
/// changes and suggests how to continue: with training.resume=changed, or as a new run from the
/// checkpoint's weights.
void check_setting_changes(const std::vector<SettingChange>& changes, ResumePolicy resume_policy,
                           const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train

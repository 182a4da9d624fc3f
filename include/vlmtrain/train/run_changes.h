#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Whether a run may continue with another value of a key (docs/resuming.md).
enum class ChangePolicy : uint8_t {
  kAllowed,      ///< as the same run
  kIfRequested,  ///< with training.resume: changed
  kNever,        ///< no: the weights of its checkpoints or the order of its samples would not be those of this run
};

/// Returns the keys with `policy`. Each key of the configuration has exactly one policy.
std::span<const std::string_view> get_keys_with_policy(ChangePolicy policy);

/// Fingerprint keys that stand for values derived from the configuration and the data set.
inline constexpr const char* kSamplesKey = "samples in data.train";
inline constexpr const char* kOrderKey = "sizes of the samples in data.train";

/// models::compute_base_fingerprint(); checkpoints of older versions lack it.
inline constexpr const char* kBaseKey = "weights in model.path";
inline constexpr const char* kStepsKey = "steps (training.max_steps or training.epochs)";

/// Returns the settings that the numbers of a run depend on: each value as text, by its key.
nlohmann::ordered_json make_run_fingerprint(const Config& config, int64_t samples);

/// Returns the value of a key as text, whatever its JSON type; empty if it is missing.
std::string get_setting_text(const nlohmann::ordered_json& fingerprint, const std::string& key);

/// A setting that differs from that of the run's checkpoint.
struct SettingChange {
  std::string key;
  std::string old_value;  ///< shortened for messages, as `new_value` is
  std::string new_value;
  ChangePolicy policy = ChangePolicy::kIfRequested;

  /// Returns for example "training.seed: was 0, is 7".
  std::string text() const;
};

/// Returns in what `current` differs from `saved`, the fingerprint of a checkpoint. A key that
/// `saved` lacks had its default: the version that wrote it did not have the key.
std::vector<SettingChange> find_changes(const nlohmann::ordered_json& saved, const nlohmann::ordered_json& current);

/// Returns whether one of `keys` is among `changes`.
bool any_key_changed(const std::vector<SettingChange>& changes, std::span<const std::string_view> keys);

/// Returns whether the samples of data.train, or the order in which they are drawn, are others.
bool changes_samples(const std::vector<SettingChange>& changes);

/// Returns whether the learning rate of some step is another; so it is if the samples are others.
bool changes_schedule(const std::vector<SettingChange>& changes);

/// Throws UserError (kUsage) if `resume` does not allow `changes`. The message lists them and
/// names the way to continue: training.resume: changed, or a new run of the checkpoint's weights.
void check_changes(const std::vector<SettingChange>& changes, ResumePolicy resume,
                   const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/data/options.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::models {
class BaseWeights;
class Processor;
}  // namespace vlmtrain::models

namespace vlmtrain::train {

/// A file next to the weights of a trained model with the settings of its images and videos: a JSON
/// object of the keys below, without those that have default values. Settings that transformers
/// supports are also in the processor's files (models/processor.h).
inline constexpr const char* kMediaSettingsFile = "media_settings.json";

/// The keys of section `data` that determine the model input for an image, a video or a box. data.max_length
/// is one of them, because longer samples may be downscaled.
inline constexpr std::string_view kMediaSettingKeys[]{
    keys::data::kImageMaxPixels, keys::data::kVideoFps,  keys::data::kVideoMaxFrames, keys::data::kVideoLayout,
    keys::data::kMaskImageSize,  keys::data::kMaxLength, keys::data::kBoxesOut,       keys::data::kBoxesOrientation};

/// Returns the text of kMediaSettingsFile; empty if all values are defaults.
std::string format_media_settings(const data::DataOptions& options);

/// Returns the settings with which the model in `checkpoint` was trained, each as key=value, from
/// kMediaSettingsFile or from the state of the run that wrote the checkpoint. Throws UserError
/// (kBadData) for a file that is not a JSON object.
std::vector<std::string> load_media_settings(const std::filesystem::path& checkpoint);

/// Sets the keys of kMediaSettingKeys to the values of load_media_settings(), unless they are among
/// `explicit_keys` or differ from their default. Returns the settings that it changed, as
/// key=value.
std::vector<std::string> apply_saved_media_settings(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                    const std::vector<std::string>& explicit_keys = {});

/// The result of parse_media_settings().
struct ParsedMediaSettings {
  std::vector<std::string> media_keys;      ///< the keys of kMediaSettingKeys that were set
  std::vector<std::string> other_settings;  ///< the settings of other keys, as key=value
};

/// Applies the settings of kMediaSettingKeys among `settings` (key=value) to `options`. Throws
/// UserError (kUsage) for an invalid value.
ParsedMediaSettings parse_media_settings(const std::vector<std::string>& settings, data::DataOptions& options);

/// A file next to the weights of a model that was trained on volumes: a JSON object of the keys
/// data.volume.*, without those that have default values.
inline constexpr const char* kVolumeSettingsFile = "volume_settings.json";

/// Returns the text of kVolumeSettingsFile; empty if all values are defaults.
std::string format_volume_settings(const data::VolumeOptions& options);

/// Returns the volume settings of the model in `checkpoint`, from kVolumeSettingsFile or from the
/// state of the run that wrote the checkpoint. `overrides` (for example data.volume.spacing=1) take
/// precedence. Throws UserError: kUsage for an override of an unknown key, kBadData for an invalid
/// file.
data::VolumeOptions resolve_volume_options(const std::filesystem::path& checkpoint,
                                           const std::vector<std::string>& overrides);

/// Removes the settings of data.columns, data.ignore_keys and data.image_root from `settings`, each
/// key=value, and returns them.
std::vector<std::string> extract_record_settings(std::vector<std::string>& settings);

/// Returns the settings with which records are read for the model in `checkpoint`: `settings`
/// (key=value) and, unless they set it, data.ignore_keys of the run that wrote the checkpoint.
/// Throws UserError: kUsage for invalid settings, kBadData for an unreadable state.
io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings);

/// Replaces data.chat_template_date=auto with the date in the state of the run that wrote
/// `checkpoint`, the date of its first start. Uses today's date if `checkpoint` is nullopt or not a
/// run's. Leaves the value unchanged if the state has no date. Throws UserError (kBadData) for an
/// invalid state.
void resolve_chat_template_date(data::DataOptions& data, const std::optional<std::filesystem::path>& checkpoint);

/// Does the same with the newest checkpoint of the run in `run_dir`. Ignores unreadable
/// checkpoints, which the start of the run reports.
void resolve_run_chat_template_date(data::DataOptions& data, const std::filesystem::path& run_dir);

/// Sets the files that `base` adds to saved models: chat template, settings of media and volumes, and the
/// processor's files. Warns about settings that the processor's files cannot express. `has_videos`: whether the run
/// has videos.
void set_saved_files(models::BaseWeights& base, const Config& config, const models::Processor& processor,
                     bool has_videos);

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

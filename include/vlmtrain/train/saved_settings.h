#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/options.h"
#include "vlmtrain/data/volume_options.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::train {

/// A file next to the weights of a trained model with the settings of its images and videos: a JSON
/// object of the keys below, without those that have default values. Settings that transformers
/// supports are also in the processor's files (models/processor_files.h).
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

}  // namespace vlmtrain::train

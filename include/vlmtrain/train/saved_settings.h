#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/options.h"
#include "vlmtrain/data/volume_options.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::train {

/// Next to the weights of a trained model: how its images and videos were made smaller and sampled, where that is not
/// by default, as one JSON object of the keys below. What of it transformers has settings for stands in the processor's
/// files, too (models/processor_files.h).
inline constexpr const char* kMediaSettingsFile = "media_settings.json";

/// The keys of the section `data` that decide what a model sees of an image or video; where a sample is too long, its
/// length decides as well.
inline constexpr std::string_view kMediaKeys[]{"data.image_max_pixels", "data.video_fps",       "data.video_max_frames",
                                               "data.video_layout",     "data.mask_image_size", "data.max_length"};

/// Returns the content of that file; empty: nothing differs from the defaults.
std::string format_media_settings(const data::DataOptions& options);

/// Returns the settings with which the model in `checkpoint` was trained, as key=value: what that file has, or the
/// state of the run that the checkpoint is of. Throws UserError (kBadData) for a file that is not a JSON object.
std::vector<std::string> load_media_settings(const std::filesystem::path& checkpoint);

/// Sets those keys of kMediaKeys that have their default value, and are not among `explicit_keys`, to what
/// load_media_settings() says. Returns what was set, as key=value.
std::vector<std::string> apply_saved_media_settings(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                    const std::vector<std::string>& explicit_keys = {});

struct ParsedMediaSettings {
  std::vector<std::string> keys;            ///< of kMediaKeys
  std::vector<std::string> other_settings;  ///< settings of other keys, as they were given
};

/// Sets the keys of kMediaKeys that are among `settings` (key=value). Throws UserError (kUsage) for a value that a key
/// cannot have.
ParsedMediaSettings parse_media_settings(const std::vector<std::string>& settings, data::DataOptions& options);

/// Beside the weights of a model that was trained on volumes: how they were read, where that is not by default, as one
/// JSON object of keys data.volume.*.
inline constexpr const char* kVolumeSettingsFile = "volume_settings.json";

/// What stands there; empty: nothing differs from the defaults.
std::string format_volume_settings(const data::VolumeOptions& options);

/// How scans are read for the model in `checkpoint`: as that file says, or the state of the run that it is one of, with
/// what `overrides` say otherwise (`data.volume.spacing=1`). Throws UserError: kUsage for overrides of other keys,
/// kBadData for a file that is none.
data::VolumeOptions load_volume_options(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& overrides);

/// Removes from `settings` (KEY=VALUE each) and returns those of how records are read: data.columns, data.ignore_keys
/// and data.image_root.
std::vector<std::string> extract_record_settings(std::vector<std::string>& settings);

/// Returns how records are read for a model in `checkpoint`: as `settings` say, else with the data.ignore_keys of the
/// run that it is a checkpoint of. Throws UserError: kUsage for settings that are invalid, kBadData for a state that
/// cannot be read.
io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings);

/// What data.chat_template_date=auto stands for: the date that the run of `checkpoint` began with, where it is one of a
/// run; else today's. A checkpoint of a run that knew no date leaves it as it is.
void resolve_chat_template_date(data::DataOptions& data, const std::optional<std::filesystem::path>& checkpoint);

/// The same for the run in `run_dir`, by its newest checkpoint.
void resolve_run_chat_template_date(data::DataOptions& data, const std::filesystem::path& run_dir);

}  // namespace vlmtrain::train

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

/// A file next to the weights of a trained model: how its images and videos were resized and
/// sampled, as one JSON object of the keys below, without defaults. The processor's own files
/// repeat what transformers has settings for (models/processor_files.h).
inline constexpr const char* kMediaSettingsFile = "media_settings.json";

/// The keys of section `data` that decide what a model sees of an image or video. For samples above
/// data.max_length that key decides as well.
inline constexpr std::string_view kMediaKeys[]{"data.image_max_pixels", "data.video_fps",       "data.video_max_frames",
                                               "data.video_layout",     "data.mask_image_size", "data.max_length"};

/// Returns the content of kMediaSettingsFile; empty if all values are defaults.
std::string format_media_settings(const data::DataOptions& options);

/// Returns the settings with which the model in `checkpoint` was trained, each as key=value, from
/// kMediaSettingsFile or from the state of the run that wrote the checkpoint. Throws UserError
/// (kBadData) for a file that is not a JSON object.
std::vector<std::string> load_media_settings(const std::filesystem::path& checkpoint);

/// Sets the keys of kMediaKeys that have their default value and are not among `explicit_keys` to
/// what load_media_settings() returns. Returns the settings that changed, as key=value.
std::vector<std::string> apply_saved_media_settings(const std::filesystem::path& checkpoint, data::DataOptions& options,
                                                    const std::vector<std::string>& explicit_keys = {});

/// Settings of a command line, divided by their keys.
struct ParsedMediaSettings {
  std::vector<std::string> keys;            ///< those of kMediaKeys
  std::vector<std::string> other_settings;  ///< settings of other keys, unchanged
};

/// Sets the keys of kMediaKeys that are among `settings` (key=value). Throws UserError (kUsage) for
/// an invalid value.
ParsedMediaSettings parse_media_settings(const std::vector<std::string>& settings, data::DataOptions& options);

/// A file next to the weights of a model that was trained on volumes: how they were read, as one
/// JSON object of keys data.volume.*, without defaults.
inline constexpr const char* kVolumeSettingsFile = "volume_settings.json";

/// Returns the content of kVolumeSettingsFile; empty if all values are defaults.
std::string format_volume_settings(const data::VolumeOptions& options);

/// Returns how volumes are read for the model in `checkpoint`: as kVolumeSettingsFile or the state
/// of its run says, with `overrides` (for example data.volume.spacing=1) on top. Throws UserError:
/// kUsage for overrides of other keys, kBadData for an invalid file.
data::VolumeOptions load_volume_options(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& overrides);

/// Removes the settings of how records are read (data.columns, data.ignore_keys, data.image_root)
/// from `settings`, each KEY=VALUE, and returns them.
std::vector<std::string> extract_record_settings(std::vector<std::string>& settings);

/// Returns how records are read for a model in `checkpoint`: as `settings` say, else with the
/// data.ignore_keys of the run that wrote the checkpoint. Throws UserError: kUsage for invalid
/// settings, kBadData for an unreadable state.
io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings);

/// Resolves data.chat_template_date=auto to the date on which the run of `checkpoint` began, or to
/// today's if it is no checkpoint of a run. A run that knew no date leaves the value unchanged.
void resolve_chat_template_date(data::DataOptions& data, const std::optional<std::filesystem::path>& checkpoint);

/// Does the same for the run in `run_dir`, with its newest checkpoint.
void resolve_run_chat_template_date(data::DataOptions& data, const std::filesystem::path& run_dir);

}  // namespace vlmtrain::train

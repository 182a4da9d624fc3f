#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/options.h"

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

}  // namespace vlmtrain::train

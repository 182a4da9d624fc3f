#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The changes to a family's processor files for a model that was trained with other settings.
struct ProcessorOverrides {
  using EditFunction = std::function<void(nlohmann::ordered_json& settings)>;

  EditFunction edit_image_settings = {};  ///< edits each copy of the image processor's settings; empty: no change
  EditFunction edit_video_settings = {};  ///< edits each copy of the video processor's settings; empty: no change
  /// Whether `edit_video_settings` is applied even if the folder has no file for videos. The video
  /// settings are then copied from the image processor's file to a file of their own.
  bool creates_video_config = false;
  std::string video_processor_type = {};           ///< class of transformers, written to that file
  std::vector<std::string> unsaved_settings = {};  ///< as ProcessorFiles::unsaved_settings
};

/// Returns whether `settings` sample videos as by default.
inline bool has_default_video_sampling(const ProcessorSettings& settings) {
  const ProcessorSettings defaults;
  return settings.video_fps == defaults.video_fps && settings.video_max_frames == defaults.video_max_frames;
}

/// The media that a processor's settings are for.
enum class MediaRole { kImages, kVideos };

/// A copy of the settings of an image or video processor in a checkpoint.
struct ProcessorSettingsCopy {
  std::string file;     ///< name in the folder: "processor_config.json"
  std::string section;  ///< "image_processor"; empty: the whole file
  std::string name;     ///< name in messages
  nlohmann::json settings;
};

/// Returns the copies in `folder`, the effective one first, in the order of transformers 5.24
/// (image_processing_base.py, video_processing_utils.py). For images: the section image_processor
/// of processor_config.json, then preprocessor_config.json. For videos: the section
/// video_processor, then video_preprocessor_config.json, and without both preprocessor_config.json.
/// Null sections are skipped. Does not check that settings are objects. Throws UserError (kBadData)
/// for a file that is not JSON.
std::vector<ProcessorSettingsCopy> find_settings_copies(const std::filesystem::path& folder, MediaRole role);

/// Returns the keys that both copies have with different values. Ignores class names, and sizes
/// given by different keys.
std::vector<std::string> find_differing_keys(const nlohmann::json& a, const nlohmann::json& b);

/// Warns, once per copy and process, about copies that differ from the first. Thread-safe.
/// REQUIRES: at least one copy.
void warn_about_conflicting_copies(const std::vector<ProcessorSettingsCopy>& copies);

}  // namespace vlmtrain::models

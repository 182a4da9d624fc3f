#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// What a family's processor files say of a model that was trained with a run's settings.
struct ProcessorChanges {
  using Edit = std::function<void(nlohmann::ordered_json& settings)>;

  Edit images = {};  ///< changes each copy of the image processor's settings; empty: nothing changes
  Edit videos = {};  ///< the same of the video processor's
  /// Whether videos that have no file of their own get one; else they follow the images' file.
  bool videos_need_file = false;
  std::string video_processor_type = {};           ///< of that file
  std::vector<std::string> unsaved_settings = {};  ///< as ProcessorFiles::unsaved_settings
};

/// Whether the run samples videos as it would without a word of the user.
inline bool has_default_sampling(const ProcessorSettings& settings) {
  const ProcessorSettings defaults;
  return settings.video_fps == defaults.video_fps && settings.video_max_frames == defaults.video_max_frames;
}

enum class MediaRole { kImages, kVideos };

/// One of the places in which a checkpoint's settings of an image or video processor stand.
struct ProcessorCopy {
  std::string file;     ///< its name in the folder: "processor_config.json"
  std::string section;  ///< "image_processor"; empty: the whole file
  std::string name;     ///< what messages call it
  nlohmann::json settings;
};

/// Returns the copies in `folder`, the one that counts first, in the order of transformers 5.24
/// (image_processing_base.py, video_processing_utils.py): a section of processor_config.json that is not null, then
/// preprocessor_config.json; of videos their section, then video_preprocessor_config.json. Settings that are not an
/// object are returned as they are. Throws UserError (kBadData) for a file that is not JSON.
std::vector<ProcessorCopy> find_copies(const std::filesystem::path& folder, MediaRole role);

/// Returns the keys that two copies have both, and with different values. Keys that name classes do not count, nor do
/// sizes that are spelled in different ways.
std::vector<std::string> find_differing_keys(const nlohmann::json& a, const nlohmann::json& b);

/// Warns, once per folder and process, of copies that say something else than the first. REQUIRES: at least one.
void warn_about_conflicting_copies(const std::vector<ProcessorCopy>& copies);

}  // namespace vlmtrain::models

#pragma once

#include <nlohmann/json.hpp>

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

}  // namespace vlmtrain::models

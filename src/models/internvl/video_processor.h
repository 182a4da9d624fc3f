#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "models/internvl/image_processor.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::internvl {

/// What a checkpoint says about videos (PreprocessorConfig::find_for_videos), and the run.
struct VideoSettings {
  TileSettings tile;                    ///< each frame becomes one, squashed
  std::optional<int64_t> num_frames{};  ///< of each video; nothing: sampling_fps of a second
  bool initial_shift = true;            ///< frames from the middles of equal parts, else from their beginnings
  double sampling_fps = 2;              ///< data.video_fps
  int64_t max_frames = 128;             ///< data.video_max_frames

  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            const ProcessorSettings& settings);

  /// Which frames are looked at, ascending, at least one: as InternVLVideoProcessor.sample_frames of transformers 5.23,
  /// but that a video of fewer frames is taken as a whole, where that stops. A video that does not say its frames a
  /// second has as many as are wanted. Of a list of frames all are taken, up to max_frames.
  std::vector<int64_t> sample(const image::VideoInfo& video) const;
};

}  // namespace vlmtrain::models::internvl

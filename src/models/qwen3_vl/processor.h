#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "models/qwen3_vl/family.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::qwen3_vl {

/// Video settings of a checkpoint (Qwen3VLVideoProcessor of transformers 5.23).
struct VideoSettings {
  qwen2_vl::PixelSettings pixels;                         ///< the budget is per video, for all used frames together
  std::optional<int64_t> max_frame_pixels;                ///< data.image_max_pixels; nothing: no limit per frame
  qwen2_vl::FrameLimits limits{.max_video_tokens = 768};  ///< max_video_tokens are per frame

  /// Reads the settings of the checkpoint in `folder`. `max_pixels` becomes max_frame_pixels.
  /// Throws UserError (kBadData) with the key for unsupported settings.
  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Returns the ascending indices of the frames to use, at least one. For a list of frames: all, or
  /// max_listed_frames evenly spaced ones. For a video file: num_frames if the settings have it (a
  /// shorter video repeats frames), else those of sample_frame_indices() with `sampling_fps`
  /// (data.video_fps). A file of unknown frame rate is assumed to have `sampling_fps`. Throws as
  /// qwen2_vl::reject_fps_conflict().
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps) const;

  /// Returns evenly spaced indices, from the first to the last frame, of a video that has `frames`
  /// frames and `video_fps` frames per second, sampled at `sampling_fps` frames per second.
  std::vector<int64_t> sample_frame_indices(int64_t frames, double video_fps, double sampling_fps) const;

  /// Returns the size that frames of `size` are resized to if `frames` frames are used.
  /// `max_pixels` is an additional limit per frame; nothing: no such limit. Throws UserError
  /// (kBadData) for an aspect ratio above 200.
  image::ImageSize compute_frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels,
                                      const VisionConfig& vision) const;
};

/// Writes settings.max_frame_pixels into `file`, the settings of a Qwen3VLVideoProcessor, as a
/// limit of the tokens per frame. Returns false and writes nothing if that is impossible, because
/// the limit is not a multiple of a token's pixels or is less than 1.05 times the minimum pixels of
/// a video. `settings` are those of the file. REQUIRES: settings.max_frame_pixels is set.
bool write_frame_pixel_limit(nlohmann::ordered_json& file, const VideoSettings& settings, const VisionConfig& vision);

/// Returns the text before each temporal patch, such as `<1.5 seconds>`: the mean time of its first
/// and last frame. `frame_indices` are those of VideoSettings::select_frames(); the last one is
/// repeated to fill the last temporal patch.
std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double video_fps,
                                         int64_t frames_per_patch);

/// Returns the text of a video: for each temporal patch its time stamp, then `tokens_per_timestamp`
/// video tokens between <|vision_start|> and <|vision_end|>.
std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_timestamp);

/// Returns the processor of Qwen3-VL (transformers' Qwen3VLProcessor). Throws as
/// qwen2_vl::GridEncoder().
std::unique_ptr<Processor> make_processor(const Config& config, const qwen2_vl::PixelSettings& images,
                                          VideoSettings videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::qwen3_vl

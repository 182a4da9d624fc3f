#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/media/media_reader.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"

// Readers of images and videos for Qwen2-VL and its successors. An image has one token per square
// of merge_size² patches.

namespace vlmtrain::models::qwen2_vl {

inline constexpr std::string_view kImagePad = "<|image_pad|>";
inline constexpr std::string_view kVideoPad = "<|video_pad|>";
inline constexpr std::string_view kVisionStart = "<|vision_start|>";
inline constexpr std::string_view kVisionEnd = "<|vision_end|>";

/// Returns kVisionStart, `pad` and kVisionEnd. With kImagePad or kVideoPad, it is the placeholder
/// of an image or video in the chat templates of these models.
std::string format_vision_block(std::string_view pad);

class GridImageReader final : public ImageReader {
 public:
  GridImageReader(const VisionConfig& vision, const PixelSettings& settings) : vision_(vision), settings_(settings) {}

  void check_size(image::ImageSize size) const override;
  MediaLayout lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  ImageView compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                    std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> get_shrink_range() const override;
  std::optional<int64_t> count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;

 private:
  image::ImageSize compute_size(image::ImageSize size, std::optional<int64_t> max_pixels) const;

  VisionConfig vision_;
  PixelSettings settings_;
};

/// Settings that the video readers of these families share.
struct GridVideoSettings {
  PixelSettings image;           ///< of images; frames must have the same normalization
  PixelSettings frame;           ///< filter and normalization of frames
  FrameLimits limits;            ///< the run's limits of the number of frames
  int64_t min_frame_pixels = 0;  ///< lower limit of shrinking
  double sampling_fps = 0;       ///< data.video_fps
};

/// Returns `limits` with the run's data.video_max_frames.
FrameLimits apply_max_frames(FrameLimits limits, int64_t video_max_frames);

/// Base class of the video readers. Subclasses determine the frames of a video, their size and their
/// text.
class GridVideoReader : public VideoReader {
 public:
  void check(const image::VideoInfo& info) const final;
  at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> max_pixels) const final;
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout) const final;
  std::optional<ShrinkRange> get_shrink_range() const final;

 protected:
  GridVideoReader(const VisionConfig& vision, const GridVideoSettings& settings)
      : vision_(vision), settings_(settings) {}

  /// Returns the ascending indices of the frames to use, at least one.
  virtual std::vector<int64_t> select_frames(const image::VideoInfo& info) const = 0;
  /// Returns the size that frames of `size` are resized to if `frames` frames are used.
  /// `max_pixels` is an additional limit per frame; nothing: no such limit.
  virtual image::ImageSize compute_frame_size(int64_t frames, image::ImageSize size,
                                              std::optional<int64_t> max_pixels) const = 0;

  /// Returns the grid of patches of a video.
  data::PatchGrid compute_video_grid(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  /// Returns the video's frame rate; for a video without one, the sampling rate.
  double get_fps(const image::VideoInfo& info) const { return info.fps > 0 ? info.fps : settings_.sampling_fps; }
  double sampling_fps() const { return settings_.sampling_fps; }
  const VisionConfig& vision_config() const { return vision_; }

 private:
  VisionConfig vision_;
  GridVideoSettings settings_;
};

/// Returns the layout of an image or video with this grid of patches. Its text has one `pad` per
/// token.
MediaLayout make_media_layout(const data::PatchGrid& grid, std::string_view pad, const VisionConfig& vision);

}  // namespace vlmtrain::models::qwen2_vl

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/media/medium.h"
#include "models/processing/chat_encoder.h"
#include "models/qwen2_vl/family.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/models/processor.h"

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

/// Image or video among the tokens of a sample.
struct VisionSpan {
  int64_t first_token;   ///< index of its first token in the sample
  data::PatchGrid grid;  ///< in tokens, not patches; `frames` are temporal patches
  float time_step = 1;   ///< positions between adjacent temporal patches
};

/// Returns data::Sample::position_ids of a sample with `tokens` tokens. Text advances all axes
/// together. The position of an image token is that of the span's start plus its time, row and
/// column. With data::VideoTokenLayout::kReleasedCode, text after a span continues after its
/// largest position on any axis. With kTransformers5, it continues after the larger of height and
/// width, so late frames of a video can exceed the positions of the following text (transformers'
/// get_rope_index from 5.3; issue 45381 there). Returns no ids without spans, since all axes are
/// equal then. REQUIRES: `spans` are in ascending order.
std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans,
                                       data::VideoTokenLayout layout);

/// Encoder of Qwen2-VL and its successors, whose positions have three axes.
class GridEncoder final : public ChatEncoder {
 public:
  /// Ids of kImagePad and kVideoPad in config.json, and the number of embedding rows.
  struct VocabularyInfo {
    int64_t image, video, vocab_size;
  };
  /// The positions of videos.
  struct VideoPositions {
    data::VideoTokenLayout layout = data::VideoTokenLayout::kReleasedCode;
    bool are_frames_separate = false;  ///< whether text separates the temporal patches of a video
  };

  /// Throws UserError (kBadData) if the tokenizer does not match `tokens`.
  GridEncoder(const VisionConfig& vision, const VocabularyInfo& tokens, const VideoPositions& videos,
              text::Tokenizer tokenizer, text::ChatTemplate chat_template);

  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> media) const override;

 private:
  VisionConfig vision_;
  VideoPositions video_positions_;
};

/// Returns the format of the tower's input, one patch per row.
TowerInputFormat make_patch_format(const VisionConfig& vision);

/// Returns the processor of Qwen2-VL and Qwen2.5-VL (transformers' Qwen2VLProcessor and
/// Qwen2_5_VLProcessor). The tokens of an image or video are between <|vision_start|> and
/// <|vision_end|>. Two video frames form a temporal patch. Throws as GridEncoder().
std::unique_ptr<Processor> make_processor(const Config& config, const PixelSettings& images, VideoSettings videos,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings);

}  // namespace vlmtrain::models::qwen2_vl

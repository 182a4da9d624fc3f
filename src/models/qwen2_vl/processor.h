#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/processing/conversation_processor.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::models::qwen2_vl {

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

inline constexpr std::string_view kImagePad = "<|image_pad|>";
inline constexpr std::string_view kVideoPad = "<|video_pad|>";
inline constexpr std::string_view kVisionStart = "<|vision_start|>";
inline constexpr std::string_view kVisionEnd = "<|vision_end|>";

/// Returns kVisionStart, `pad` and kVisionEnd. With kImagePad or kVideoPad, it is the placeholder
/// of an image or video in the chat templates of these models.
std::string format_vision_block(std::string_view pad);

/// Base class of the processors of Qwen2-VL and its successors. An image has one token per square
/// of merge_size² patches. Subclasses determine the frames of a video, their size and their text.
class GridProcessor : public ConversationProcessor {
 protected:
  /// Ids of kImagePad and kVideoPad in config.json, and the number of embedding rows.
  struct VocabularyInfo {
    int64_t image, video, vocab_size;
  };

  /// Throws UserError (kBadData) if the tokenizer does not match `tokens`.
  GridProcessor(const VisionConfig& vision_config, const VocabularyInfo& tokens, PixelSettings images,
                text::Tokenizer tokenizer, text::ChatTemplate chat_template, const ProcessorSettings& settings);

  /// Returns the ascending indices of the frames to use, at least one.
  virtual std::vector<int64_t> select_frames(const image::VideoInfo& info) const = 0;
  /// Returns the size that frames of `size` are resized to if `frames` frames are used.
  /// `max_pixels` is an additional limit per frame; nothing: no such limit.
  virtual image::ImageSize compute_frame_size(int64_t frames, image::ImageSize size,
                                              std::optional<int64_t> max_pixels) const = 0;

  /// Returns the layout of an image or video with this grid of patches. Its text has one `pad` per
  /// token.
  MediaLayout make_media_layout(const data::PatchGrid& grid, std::string_view pad) const;
  /// Returns the grid of patches of a video.
  data::PatchGrid compute_video_grid(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  /// Returns the video's frame rate; for a video without one, the sampling rate.
  double get_fps(const image::VideoInfo& info) const { return info.fps > 0 ? info.fps : sampling_fps_; }
  /// Returns data.video_fps.
  double sampling_fps() const { return sampling_fps_; }
  const image::Normalization& image_normalization() const { return image_settings_.normalization; }
  const VisionConfig& vision_config() const { return vision_config_; }

 private:
  MediaLayout lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const final;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const final;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const final;
  void check_size(image::ImageSize size) const final;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const final;
  std::optional<ShrinkRange> get_shrink_range(data::MediaKind kind) const final;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const final;
  bool supports_videos() const final { return true; }
  at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const final;

  image::ImageSize compute_image_size(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// Returns the minimum number of pixels of a frame.
  virtual int64_t min_frame_pixels() const = 0;
  virtual image::ResampleFilter frame_filter() const = 0;

  VisionConfig vision_config_;
  VocabularyInfo vocabulary_info_;
  PixelSettings image_settings_;
  double sampling_fps_;
};

/// Processor of Qwen2-VL and Qwen2.5-VL (transformers' Qwen2VLProcessor and Qwen2_5_VLProcessor).
/// The tokens of an image or video are between <|vision_start|> and <|vision_end|>. Two video
/// frames form a temporal patch.
class Processor final : public GridProcessor {
 public:
  Processor(const Config& config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override;
  image::ImageSize compute_frame_size(int64_t frames, image::ImageSize size,
                                      std::optional<int64_t> max_pixels) const override;
  int64_t min_frame_pixels() const override { return video_settings_.pixels.budget.min_pixels; }
  image::ResampleFilter frame_filter() const override { return video_settings_.pixels.filter; }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout lay_out_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const override;

  std::optional<int64_t> tokens_per_second_;
  VideoSettings video_settings_;
  data::VideoTokenLayout video_layout_;
};

}  // namespace vlmtrain::models::qwen2_vl

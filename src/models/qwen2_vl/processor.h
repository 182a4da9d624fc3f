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
#include "vlmtrain/data/sample.h"
#include "vlmtrain/data/video_layout.h"

namespace vlmtrain::models::qwen2_vl {

/// An image or video among a sample's tokens.
struct VisionSpan {
  int64_t first_token;
  data::PatchGrid grid;  ///< of tokens, not of patches
  float time_step = 1;   ///< positions from one frame to the next
};

/// data::Sample::position_ids: text advances all axes alike; the tokens of an image have their frame, row and column
/// beyond the position before them, and what follows goes on after the largest of them on any axis. With
/// data::VideoLayout::kTransformers5, after the larger of the sides alone, so that the frames of a video may come to
/// lie beyond the text behind it (transformers' get_rope_index since 5.3; issue 45381 there). Empty without spans,
/// where all axes are equal.
std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans, data::VideoLayout layout);

inline constexpr std::string_view kImagePad = "<|image_pad|>";
inline constexpr std::string_view kVideoPad = "<|video_pad|>";
inline constexpr std::string_view kVisionStart = "<|vision_start|>";
inline constexpr std::string_view kVisionEnd = "<|vision_end|>";

/// What the templates of these models write for a picture or a video.
std::string format_vision_block(std::string_view pad);

/// What the processors of Qwen2-VL and its successors do alike: an image becomes as many tokens as it has squares of
/// merge_size² patches. A model says which frames of a video it looks at, how large, and what is written for them.
class GridProcessor : public ConversationProcessor {
 protected:
  /// The ids of kImagePad and kVideoPad in config.json, and the rows of the embedding.
  struct Tokens {
    int64_t image, video, vocab_size;
  };

  GridProcessor(const VisionConfig& vision, const Tokens& tokens, PixelSettings images, text::Tokenizer tokenizer,
                text::ChatTemplate chat_template, const ProcessorSettings& settings);

  /// Those of a video that are looked at, at least one.
  virtual std::vector<int64_t> select_frames(const image::VideoInfo& info) const = 0;
  /// What frames of `size` are resized to where so many of them are looked at.
  virtual image::ImageSize frame_size(int64_t frames, image::ImageSize size,
                                      std::optional<int64_t> max_pixels) const = 0;

  /// Of a picture or video, `pad` once a token.
  MediaLayout make_layout(const data::PatchGrid& grid, std::string_view pad) const;
  data::PatchGrid compute_video_grid(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  /// Frames a second of the video; of one that does not say: as many as are wanted.
  double get_fps(const image::VideoInfo& info) const { return info.fps > 0 ? info.fps : sampling_fps_; }
  double sampling_fps() const { return sampling_fps_; }
  const image::Normalization& image_normalization() const { return images_.normalization; }
  const VisionConfig& vision() const { return vision_; }

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const final;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const final;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const final;
  void check_size(image::ImageSize size) const final;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const final;
  std::optional<ShrinkRange> shrink_range(data::MediaKind kind) const final;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const final;
  bool supports_videos() const final { return true; }
  at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const final;

  image::ImageSize compute_image_size(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// The least pixels of a frame.
  virtual int64_t min_frame_pixels() const = 0;
  virtual image::Filter frame_filter() const = 0;

  VisionConfig vision_;
  Tokens tokens_;
  PixelSettings images_;
  double sampling_fps_;
};

/// Qwen2VLProcessor and Qwen2_5_VLProcessor of transformers: the tokens of an image stand between <|vision_start|> and
/// <|vision_end|>. So do those of a video, two frames of which make a patch.
class Processor final : public GridProcessor {
 public:
  Processor(const Config& config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override;
  image::ImageSize frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  int64_t min_frame_pixels() const override { return videos_.pixels.budget.min_pixels; }
  image::Filter frame_filter() const override { return videos_.pixels.filter; }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const override;

  std::optional<int64_t> tokens_per_second_;
  VideoSettings videos_;
  data::VideoLayout layout_;
};

}  // namespace vlmtrain::models::qwen2_vl

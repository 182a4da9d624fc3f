#pragma once

#include "models/processing/conversation_processor.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"

namespace vlmtrain::models::qwen2_vl {

inline constexpr std::string_view kImagePad = "<|image_pad|>";
inline constexpr std::string_view kVideoPad = "<|video_pad|>";

/// Qwen2VLProcessor and Qwen2_5_VLProcessor of transformers: an image becomes as many tokens as it has squares of
/// merge_size² patches, between <|vision_start|> and <|vision_end|>. So does a video, two frames of which make a patch.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  ImagePlan plan(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<SeenPicture> pictures_in(const at::Tensor& rows, const ImagePlan& medium, image::ImageSize size,
                                       std::optional<int64_t> max_pixels) const override;
  void check_size(image::ImageSize size) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> shrink_range(data::MediumKind kind) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const override;
  std::vector<int64_t> position_ids(const EncodedChat& chat, std::span<const ImagePlan> images) const override;

  bool takes_videos() const override { return true; }
  ImagePlan plan_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  at::Tensor pixels_of_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;

  ImagePlan plan(data::PatchGrid grid, std::string_view pad) const;
  /// Frames a second of the video; of one that does not say: as many as are wanted.
  double fps_of(const image::VideoInfo& info) const { return info.fps > 0 ? info.fps : wanted_fps_; }
  std::vector<int64_t> frames_of(const image::VideoInfo& info) const;
  /// Of a picture, and of the frames of a video of which so many are taken.
  PixelSettings picture_settings(std::optional<int64_t> max_pixels) const;
  PixelSettings frame_settings(int64_t frames, std::optional<int64_t> max_pixels) const;

  Config config_;
  PixelSettings images_;
  VideoSettings videos_;
  double wanted_fps_;
};

}  // namespace vlmtrain::models::qwen2_vl

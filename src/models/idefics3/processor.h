#pragma once

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/video_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::idefics3 {

/// Idefics3Processor and SmolVLMProcessor of transformers: each image becomes its tiles in the text
/// (models/idefics3/image_text.h), and with `videos` each frame of a video a tile (models/idefics3/video_text.h).
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessor images, std::optional<VideoSettings> videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, ProcessorSettings settings);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> shrink_range(data::MediaKind kind) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  bool supports_videos() const override { return videos_.has_value(); }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;

  Config config_;
  ImageProcessor images_;
  std::optional<VideoSettings> videos_;
};

}  // namespace vlmtrain::models::idefics3

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "models/idefics3/image_processor.h"
#include "models/idefics3/model.h"
#include "models/idefics3/video_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::idefics3 {

/// What stands for an image in the model's text: for each cell `<fake_token_around_image><row_r_col_c>` and its image
/// tokens, a line break after each row and one more after the last; then the whole picture as
/// `<fake_token_around_image><global-img>`, its image tokens, `<fake_token_around_image>`. An image that is not split
/// is the whole picture alone.
std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile);

/// How many tokens the text of images or of a video is (models/idefics3/image_text.h, video_text.h), image tokens
/// included.
///
/// Exact where `folder` has a tokenizer.json. Else each run of line breaks is one token, and so is each marker such as
/// `<row_1_col_1>`, but for those that an added_tokens.json does not list: they have one for each of their words,
/// digits and punctuation marks, as all other text has. That is what the tokenizers of SmolVLM do: 256M and 500M have
/// tokens for all markers, 2.2B spells them out.
int64_t count_tokens(std::string_view text, const std::filesystem::path& folder);

/// The same of the text of an image.
int64_t count_image_text(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

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

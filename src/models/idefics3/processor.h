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

/// Returns the text of an image: for each cell `<fake_token_around_image><row_r_col_c>` and its
/// image tokens, a line break after each row and one more after the last; then for the full image
/// `<fake_token_around_image><global-img>`, its image tokens and `<fake_token_around_image>`. An
/// image without splitting has the last part only.
std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile);

/// Returns the number of tokens of the text of images or a video, image tokens included. Exact if
/// `folder` has a tokenizer.json. Otherwise estimated as SmolVLM's tokenizers count: each word,
/// digit, punctuation mark and run of line breaks is one token. A marker such as `<row_1_col_1>` is
/// one token if `folder` has no added_tokens.json or if that file lists it (256M and 500M list all
/// markers, 2.2B does not).
int64_t count_tokens(std::string_view text, const std::filesystem::path& folder);

/// Returns count_tokens() of format_image_text().
int64_t count_image_text_tokens(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Processor of Idefics3 and SmolVLM (transformers' Idefics3Processor and SmolVLMProcessor). Each
/// image becomes several tiles, each frame of a video one tile.
class Processor final : public ConversationProcessor {
 public:
  /// Creates the processor; without `videos` it does not support videos. Throws UserError
  /// (kBadData) if the tokenizer does not match `config`.
  Processor(Config config, ImageProcessor images, std::optional<VideoSettings> videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, ProcessorSettings settings);

 private:
  MediaLayout lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> get_shrink_range(data::MediaKind kind) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  bool supports_videos() const override { return video_settings_.has_value(); }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout lay_out_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;

  Config config_;
  ImageProcessor image_processor_;
  std::optional<VideoSettings> video_settings_;
};

}  // namespace vlmtrain::models::idefics3

#pragma once

#include "models/nanovlm/config.h"
#include "models/nanovlm/image_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::nanovlm {

/// The tokenizer that nanoVLM makes: `folder`/tokenizer.json and, behind its tokens, those of vlm_extra_tokens that it
/// has not. Throws UserError (kBadData) that says what to fetch where there is none, as in nanoVLM's own checkpoints.
text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder);

/// nanoVLM's datasets.py: each image becomes its tiles in the text, with `<image: N>` before it where there are more
/// than one; in the release v0.1 the features of all images stand before the text.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> shrink_range(data::MediaKind kind) const override;
  int64_t max_positions() const override { return config_.max_positions; }
  std::string describe_position_overflow(const std::string& id, int64_t tokens) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;
  EncodedChat encode_after_images(const text::RenderedChat& chat, std::span<const MediaLayout> images) const;
  EncodedChat encode_with_tokens(const text::RenderedChat& chat, std::span<const MediaLayout> images) const;

  Config config_;
  ImageProcessor images_;
  int64_t image_token_id_ = -1;
};

}  // namespace vlmtrain::models::nanovlm

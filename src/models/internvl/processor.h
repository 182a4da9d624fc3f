#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "models/internvl/config.h"
#include "models/internvl/image_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::internvl {

inline constexpr std::string_view kImageToken = "<IMG_CONTEXT>";  ///< its embedding is replaced by an image feature

/// Returns the text of an image: `<img>`, kImageToken for each image token of all tiles, `</img>`.
std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile);

/// Returns the text of a video: one line `Frame1: <img>…</img>` per frame.
std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile);

/// Returns the number of tokens of format_video_text(). Exact if `folder` has a tokenizer.json;
/// otherwise counted as Qwen's tokenizers split it: one token per word, digit, punctuation mark and
/// line break.
int64_t count_video_text_tokens(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Processor of InternVL (transformers' InternVLProcessor). Each image becomes one or several
/// tiles, each frame of a video one tile.
class Processor final : public ConversationProcessor {
 public:
  /// Throws UserError (kBadData) if the tokenizer does not match `config`.
  Processor(Config config, ImageProcessor images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  MediaLayout lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> get_shrink_range(data::MediaKind kind) const override;
  int64_t max_positions() const override;
  std::string describe_position_overflow(const std::string& id, int64_t tokens) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  bool supports_videos() const override { return true; }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout lay_out_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;

  Config config_;
  ImageProcessor image_processor_;
  VideoSettings video_settings_;
};

}  // namespace vlmtrain::models::internvl

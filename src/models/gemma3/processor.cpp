#include "models/gemma3/processor.h"

#include <fmt/format.h>

#include <utility>

#include "models/processing/cut_tiles.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::gemma3 {

namespace {

void check_token(const text::Tokenizer& tokenizer, std::string_view token, int64_t id, const char* key) {
  const int64_t actual_id = find_token_id(tokenizer, token);
  if (actual_id == id) return;
  throw data_error("config.json's {} is {}, but tokenizer.json gives {} the id {}", key, id, token, actual_id);
}

std::string format_single_image(int64_t image_tokens) {
  std::string text = fmt::format("\n\n{}", kStartOfImage);
  for (int64_t i = 0; i < image_tokens; ++i) text += kImageToken;
  return text += fmt::format("{}\n\n", kEndOfImage);
}

}  // namespace

std::string format_image_text(int64_t image_tokens, int64_t crops) {
  std::string single_image = format_single_image(image_tokens);
  if (crops == 0) return single_image;
  std::string text =
      fmt::format("Here is the original image {} and here are some crops to help you see better ", single_image);
  for (int64_t crop = 0; crop < crops; ++crop) text += (crop == 0 ? "" : " ") + single_image;
  return text;
}

Processor::Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, ProcessorSettings settings)
    : ConversationProcessor(
          std::move(tokenizer), std::move(chat_template), std::move(settings),
          {{.height = config.vision.image_size, .width = config.vision.image_size}, config.image_tokens()}),
      config_(std::move(config)),
      images_(images) {
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
  check_token(this->tokenizer(), kImageToken, config_.image_token_id, "image_token_index");
  check_token(this->tokenizer(), kStartOfImage, config_.start_token_id, "boi_token_index");
  check_token(this->tokenizer(), kEndOfImage, config_.end_token_id, "eoi_token_index");
}

MediaLayout Processor::layout_image(image::ImageSize size, std::optional<int64_t> /*max_pixels*/) const {
  const auto crops = std::ssize(compute_crops(size, images_.pan_and_scan));
  return {.text = format_image_text(config_.image_tokens(), crops), .pixel_rows = 1 + crops};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> /*max_pixels*/) const {
  return prepare_image(image, images_);
}

std::vector<MediaPreview> Processor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                    image::ImageSize size, std::optional<int64_t> max_pixels) const {
  auto previews = ConversationProcessor::preview_images(rows, layout, size, max_pixels);
  if (previews.size() > 1) previews.front() = make_overview_preview(rows.select(0, 0));
  return previews;
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_images(tokenizer(), chat, images, config_.image_token_id,
                            /*add_special_tokens=*/!chat_template().writes_bos());
}

}  // namespace vlmtrain::models::gemma3

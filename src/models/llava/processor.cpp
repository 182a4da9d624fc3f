#include "models/llava/processor.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/text/conversation.h"
#include "vlmtrain/text/labels.h"

namespace vlmtrain::models::llava {

namespace {

std::string repeat(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace

Processor::Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, ProcessorSettings settings, std::optional<MaskInput> masks)
    : ConversationProcessor(
          std::move(tokenizer), std::move(chat_template), std::move(settings),
          {{.height = config.vision.image_size, .width = config.vision.image_size}, config.image_tokens()},
          std::move(masks)),
      config_(std::move(config)),
      images_(std::move(images)) {
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
  if (config_.layout == Layout::kOriginal) return;
  const int64_t image_token = find_token_id(this->tokenizer(), text::kImagePlaceholder);
  if (image_token != *config_.image_token_id) {
    throw data_error("config.json's image_token_index is {}, but tokenizer.json gives {} the id {}",
                     *config_.image_token_id, text::kImagePlaceholder, image_token);
  }
}

MediaLayout Processor::layout_image(image::ImageSize size, std::optional<int64_t> /*max_pixels*/) const {
  check_image_size(size, images_);
  return {repeat(text::kImagePlaceholder, config_.image_tokens()), 1};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> /*max_pixels*/) const {
  return prepare_image(image, images_).unsqueeze(0);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  if (config_.layout == Layout::kOriginal) return encode_text_segments(chat, images.size());
  return encode_with_images(tokenizer(), chat, images, *config_.image_token_id,
                            /*add_special_tokens=*/!chat_template().writes_bos());
}

EncodedChat Processor::encode_text_segments(const text::RenderedChat& chat, size_t images) const {
  constexpr int64_t kAnyToken = 0;  // its embedding is replaced by an image feature
  // As tokenizer_image_token of LLaVA: each text on its own, the first one with the tokenizer's own start.
  text::Encoding encoding;
  EncodedChat encoded;
  size_t begin = 0;
  for (size_t image = 0;; ++image) {
    const size_t end = image < images ? chat.media.at(image).span.begin : chat.text.size();
    const bool add_special_tokens = image == 0 && !chat_template().writes_bos();
    const auto segment = tokenizer().encode(std::string_view(chat.text).substr(begin, end - begin), add_special_tokens);
    encoding.ids.insert(encoding.ids.end(), segment.ids.begin(), segment.ids.end());
    for (const uint32_t start : segment.starts) encoding.starts.push_back(start + static_cast<uint32_t>(begin));
    if (image == images) break;
    for (int64_t i = 0; i < config_.image_tokens(); ++i) {
      encoded.image_token_positions.push_back(std::ssize(encoding.ids));
      encoding.ids.push_back(kAnyToken);
      encoding.starts.push_back(static_cast<uint32_t>(end));
    }
    begin = chat.media[image].span.end;
  }
  encoded.is_label = text::compute_label_mask(encoding, chat.text, chat.answers);
  encoded.token_ids = std::move(encoding.ids);
  return encoded;
}

}  // namespace vlmtrain::models::llava

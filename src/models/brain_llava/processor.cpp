#include "models/brain_llava/processor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/text/conversation.h"

namespace vlmtrain::models::brain_llava {

namespace {

image::VolumeSettings make_volume_settings(const Config& config, const data::VolumeOptions& options) {
  if (options.use == data::VolumeUse::kSlices) {
    throw usage_error(
        "data.volume.as: is slices, which are pictures, and brain_llava takes volumes alone; leave it volume, or "
        "take a model of a family that takes pictures");
  }
  return options.volume_settings(config.volume_size(options.size));
}

/// What tells one name of a modality from another: letters and digits, "T1-w" being "t1w".
std::string normalize_name(const std::string& modality) {
  std::string normalized;
  for (const unsigned char c : modality) {
    if (std::isalnum(c) != 0) normalized.push_back(static_cast<char>(std::tolower(c)));
  }
  return normalized;
}

}  // namespace

Processor::Processor(Config config, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                     const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {config.row(settings.volume.size, settings.volume.dtype), config.tokens_per_volume()}),
      config_(std::move(config)),
      volumes_(make_volume_settings(config_, settings.volume)) {
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
  const int64_t image_token = find_token_id(this->tokenizer(), text::kImagePlaceholder);
  if (image_token != config_.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}",
                     config_.image_token_id, text::kImagePlaceholder, image_token);
  }
}

MediaLayout Processor::layout_image(image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("a plan of a picture in a family of volumes");
}

at::Tensor Processor::preprocess_image(const at::Tensor& /*image*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("pixels of a picture in a family of volumes");
}

MediaLayout Processor::layout_volume(const image::VolumeInfo& info) const {
  MediaLayout layout{.text = {}, .pixel_rows = image::count_volumes(info, volumes_)};
  layout.decode_bytes = image::estimate_reading_bytes(info, volumes_);
  for (int64_t i = 0; i < layout.pixel_rows * config_.tokens_per_volume(); ++i) layout.text += text::kImagePlaceholder;
  return layout;
}

at::Tensor Processor::preprocess_volume(const io::MediaRef& file) const {
  return image::read_volume(file, volumes_);
}

int64_t Processor::find_modality_id(const std::string& modality) const {
  const auto& modalities = config_.vision.modalities;
  if (modalities.empty() || modality.empty()) return 0;
  const auto it = std::ranges::find(modalities, normalize_name(modality), normalize_name);
  if (it != modalities.end()) return it - modalities.begin() + 1;
  throw data_error(
      "the modality {} is none that the model knows: {}; call it so, leave the word out, or add it to modalities in "
      "config.json before training",
      make_excerpt(modality), fmt::join(modalities, ", "));
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_images(tokenizer(), chat, images, config_.image_token_id,
                            /*add_special_tokens=*/!chat_template().writes_bos());
}

}  // namespace vlmtrain::models::brain_llava

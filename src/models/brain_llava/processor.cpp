#include "models/brain_llava/processor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/text/conversation.h"

namespace vlmtrain::models::brain_llava {

namespace {

image::VolumeSettings volume_settings(const Config& config, const data::VolumeOptions& options) {
  if (options.use == data::VolumeUse::kSlices) {
    throw usage_error(
        "data.volume.as: is slices, which are pictures, and brain_llava takes volumes alone; leave it volume, or "
        "take a model of a family that takes pictures");
  }
  return options.volume_settings(config.volume_size(options.size));
}

/// What tells one name of a modality from another: letters and digits, "T1-w" being "t1w".
std::string plain_name(const std::string& modality) {
  std::string plain;
  for (const unsigned char letter : modality) {
    if (std::isalnum(letter) != 0) plain.push_back(static_cast<char>(std::tolower(letter)));
  }
  return plain;
}

}  // namespace

Processor::Processor(Config config, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                     const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {config.row(settings.volume.size, settings.volume.dtype), config.tokens_per_volume()}),
      config_(std::move(config)),
      volumes_(volume_settings(config_, settings.volume)) {
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
  const int64_t image_token = id_of(this->tokenizer(), text::kImageMark);
  if (image_token != config_.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}",
                     config_.image_token_id, text::kImageMark, image_token);
  }
}

ImagePlan Processor::plan(image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("a plan of a picture in a family of volumes");
}

at::Tensor Processor::pixels_of(const at::Tensor& /*image*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("pixels of a picture in a family of volumes");
}

ImagePlan Processor::plan_volume(const image::VolumeInfo& info) const {
  ImagePlan plan{.text = {}, .pixel_rows = image::volumes_of(info, volumes_)};
  plan.making_bytes = image::reading_bytes(info, volumes_);
  for (int64_t i = 0; i < plan.pixel_rows * config_.tokens_per_volume(); ++i) plan.text += text::kImageMark;
  return plan;
}

at::Tensor Processor::pixels_of_volume(const io::Medium& file) const {
  return image::read_volume(file, volumes_);
}

int64_t Processor::modality_number(const std::string& modality) const {
  const auto& known = config_.vision.modalities;
  if (known.empty() || modality.empty()) return 0;
  const auto found = std::ranges::find(known, plain_name(modality), plain_name);
  if (found != known.end()) return found - known.begin() + 1;
  throw data_error(
      "the modality {} is none that the model knows: {}; call it so, leave the word out, or add it to modalities in "
      "config.json before training",
      excerpt(modality), fmt::join(known, ", "));
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  return encode_expanded(tokenizer(), chat, images, config_.image_token_id,
                         /*add_special_tokens=*/!chat_template().writes_start());
}

}  // namespace vlmtrain::models::brain_llava

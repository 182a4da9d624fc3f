#include <ATen/ops/stack.h>

#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

data::Sample ConversationProcessor::with_masks(data::Sample sample, const io::Record& record,
                                               const std::vector<Medium>& media) const {
  // A prompt has no answer yet, and what is no label has nothing to draw.
  if (!mask_input_ || sample.label_tokens() == 0) return sample;
  const auto sizes = picture_sizes(media);
  sample.masks = outline_masks(record, sample, sizes, *mask_input_);
  // The square of a picture, of three colours, and that of a mask; they are resized from what is decoded already.
  sample.making_bytes += sample.masks.empty() ? 0 : mask_input_->side * mask_input_->side * (1 + 3);
  return sample;
}

std::vector<at::Tensor> ConversationProcessor::masks_of(const io::Record& record) const {
  std::vector<at::Tensor> masks;
  for (const io::MaskSource& source : record.masks) {
    const io::Medium& picture = record.images.at(static_cast<size_t>(source.image));
    masks.push_back(read_mask(source, image::read_image_size(picture)).mask);
  }
  return masks;
}

std::optional<data::Sample> ConversationProcessor::to_draw(const io::Record& record, const data::Sample& prompt,
                                                           const std::vector<int64_t>& answer) const {
  if (!mask_input_ || record.images.empty()) return std::nullopt;
  data::Sample sample = prompt;
  data::Masks masks;
  for (const int64_t token : answer) {
    if (token == mask_input_->token_id) masks.token_positions.push_back(sample.tokens());
    sample.token_ids.push_back(token);
    sample.is_label.push_back(1);
  }
  if (masks.empty()) return std::nullopt;
  const at::Tensor picture = image::decode_image(record.images.front());
  const auto count = static_cast<size_t>(masks.count());
  masks.pictures.assign(count, 0);
  masks.filled.assign(count, filled_part({.height = picture.size(1), .width = picture.size(2)}, mask_input_->side));
  masks.structures.resize(count);
  masks.pixels = square_picture(picture, mask_input_->side).unsqueeze(0);
  sample.masks = std::move(masks);
  return sample;
}

}  // namespace vlmtrain::models

#include <ATen/ops/stack.h>

#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

data::Sample ConversationProcessor::add_empty_masks(data::Sample sample, const io::Record& record,
                                                    const std::vector<Medium>& media) const {
  // Prompts have no answer yet, and mask tokens are label tokens.
  if (!mask_input_ || sample.label_tokens() == 0) return sample;
  const auto sizes = collect_image_sizes(media);
  sample.masks = make_meta_masks(record, sample, sizes, *mask_input_);
  // Bytes of the mask encoder's input (RGB) and of a resized mask (one channel). The decoded image
  // is counted already.
  sample.decode_bytes += sample.masks.empty() ? 0 : mask_input_->side * mask_input_->side * (1 + 3);
  return sample;
}

std::vector<at::Tensor> ConversationProcessor::load_masks(const io::Record& record) const {
  std::vector<at::Tensor> masks;
  for (const io::MaskSource& source : record.masks) {
    const io::MediaRef& medium = record.images.at(static_cast<size_t>(source.image_index));
    masks.push_back(read_mask(source, image::read_image_size(medium)).mask);
  }
  return masks;
}

std::optional<data::Sample> ConversationProcessor::make_mask_prompt(const io::Record& record,
                                                                    const data::Sample& prompt,
                                                                    const std::vector<int64_t>& answer) const {
  if (!mask_input_ || record.images.empty()) return std::nullopt;
  data::Sample sample = prompt;
  data::SegmentationMasks masks;
  for (const int64_t token : answer) {
    if (token == mask_input_->token_id) masks.token_positions.push_back(sample.tokens());
    sample.token_ids.push_back(token);
    sample.label_mask.push_back(1);
  }
  if (masks.empty()) return std::nullopt;
  const at::Tensor image = image::decode_image(record.images.front());
  const auto count = static_cast<size_t>(masks.count());
  masks.image_indices.assign(count, 0);
  masks.valid_regions.assign(
      count, compute_valid_region({.height = image.size(1), .width = image.size(2)}, mask_input_->side));
  masks.structure_names.resize(count);
  masks.pixels = make_mask_image(image, mask_input_->side).unsqueeze(0);
  sample.masks = std::move(masks);
  return sample;
}

}  // namespace vlmtrain::models

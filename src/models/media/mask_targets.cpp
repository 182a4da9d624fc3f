#include "models/media/mask_targets.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::models {

namespace {

/// Returns the sizes of the images, without other media, in order.
std::vector<image::ImageSize> collect_image_sizes(const MediaList& media) {
  std::vector<image::ImageSize> sizes;
  for (const auto& medium : media) {
    if (const auto size = medium->image_size()) sizes.push_back(*size);
  }
  return sizes;
}

}  // namespace

void MaskTargets::check_media(const io::Record& record, const MediaList& media) {
  const auto is_slice = [](const auto& medium) { return medium->image_size() && medium->file().is_volume; };
  if (record.masks.empty() || std::ranges::none_of(media, is_slice)) return;
  throw data::SampleError("masks of a volume",
                          fmt::format("sample {} has masks and a volume that is read as slices, but masks are not "
                                      "assigned to slices; drop the sample",
                                      record.id));
}

void MaskTargets::add_meta_masks(const io::Record& record, const MediaList& media, data::Sample& sample) const {
  if (sample.label_tokens() == 0) return;  // mask tokens are label tokens
  sample.masks = make_meta_masks(record, sample, collect_image_sizes(media), input_);
  // Bytes of the mask encoder's input (RGB) and of a resized mask (one channel). The decoded image
  // is counted already.
  sample.decode_bytes += sample.masks.empty() ? 0 : input_.side * input_.side * (1 + 3);
}

void MaskTargets::allocate_pixels(data::SegmentationMasks& masks) {
  if (!masks.empty()) masks.pixels = at::empty(masks.pixels.sizes(), at::kByte);
}

void MaskTargets::set_pixels(const io::Record& record, int64_t image_index, const at::Tensor& image,
                             data::SegmentationMasks& masks) const {
  if (masks.empty()) return;
  const auto masked_image_indices = find_masked_image_indices(record);
  const auto it = std::ranges::find(masked_image_indices, image_index);
  if (it == masked_image_indices.end()) return;
  masks.pixels.select(0, it - masked_image_indices.begin()).copy_(make_mask_image(image, input_.side));
}

void MaskTargets::set_targets(const io::Record& record, const MediaList& media, const image::Augmentation& augmentation,
                              data::SegmentationMasks& masks, std::vector<io::Notice>& notices) const {
  if (masks.empty() || !masks.targets.defined()) return;
  masks.targets = load_mask_targets(record, collect_image_sizes(media), augmentation, input_.side, notices);
}

std::optional<data::Sample> MaskTargets::make_prompt(const io::Record& record, const data::Sample& prompt,
                                                     const std::vector<int64_t>& answer) const {
  if (record.images.empty()) return std::nullopt;
  data::Sample sample = prompt;
  data::SegmentationMasks masks;
  for (const int64_t token : answer) {
    if (token == input_.token_id) masks.token_positions.push_back(sample.tokens());
    sample.token_ids.push_back(token);
    sample.label_mask.push_back(1);
  }
  if (masks.empty()) return std::nullopt;
  const at::Tensor image = image::decode_image(record.images.front());
  const auto count = static_cast<size_t>(masks.count());
  masks.image_indices.assign(count, 0);
  masks.valid_regions.assign(count,
                             compute_valid_region({.height = image.size(1), .width = image.size(2)}, input_.side));
  masks.structure_names.resize(count);
  masks.pixels = make_mask_image(image, input_.side).unsqueeze(0);
  sample.masks = std::move(masks);
  return sample;
}

}  // namespace vlmtrain::models

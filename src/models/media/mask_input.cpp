#include "models/media/mask_input.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models {

namespace {

/// Padding color: SAM's pixel mean (123.675, 116.28, 103.53), rounded, so that normalized padding
/// is close to zero.
constexpr std::array<int64_t, 3> kMaskPaddingColor{124, 116, 104};

/// Reads the size of a mask from its RLE or its file's header.
image::ImageSize read_mask_source_size(const io::MaskSource& source) {
  if (!source.rle) return image::read_mask_size(source.file, source.value);
  return {.height = source.rle->height, .width = source.rle->width};
}

void check_mask_size(image::ImageSize mask, image::ImageSize image_size) {
  if (mask == image_size) return;
  throw data_error("has {} x {} pixels, but its image has {} x {}; a mask must have the size of its image", mask.width,
                   mask.height, image_size.width, image_size.height);
}

/// Returns the result of read(). Converts its UserErrors to data::SampleError, which names the
/// record and the mask.
template <class Read>
auto rethrow_mask_error(const io::Record& record, size_t index, const Read& read) {
  try {
    return read();
  } catch (const UserError& error) {
    const std::string& path = record.masks[index].file.path;
    const std::string name = path.empty() ? "" : fmt::format(" ({})", path);
    throw data::SampleError("unusable mask",
                            fmt::format("sample {}: mask {}{}: {}", record.id, index + 1, name, error.what()));
  }
}

image::ImageSize get_image_size(const io::MaskSource& mask, std::span<const image::ImageSize> image_sizes) {
  return image_sizes[static_cast<size_t>(mask.image_index)];
}

std::vector<int64_t> find_mask_token_positions(const data::Sample& sample, int64_t token_id) {
  std::vector<int64_t> positions;
  for (int64_t position = 0; position < sample.tokens(); ++position) {
    const auto index = static_cast<size_t>(position);
    if (sample.token_ids[index] == token_id && sample.label_mask[index] != 0) positions.push_back(position);
  }
  return positions;
}

}  // namespace

data::ValidRegion compute_valid_region(image::ImageSize size, int64_t side) {
  const int64_t longer_side = std::max(size.height, size.width);
  const auto scale_length = [&](int64_t length) {
    return std::max<int64_t>(1, (2 * length * side + longer_side) / (2 * longer_side));  // rounds half up
  };
  return {.rows = scale_length(size.height), .columns = scale_length(size.width)};
}

at::Tensor make_mask_image(const at::Tensor& image, int64_t side) {
  const data::ValidRegion valid_region = compute_valid_region({.height = image.size(1), .width = image.size(2)}, side);
  at::Tensor padded_image = at::empty({3, side, side}, at::kByte);
  for (int64_t channel = 0; channel < 3; ++channel) {
    padded_image.select(0, channel).fill_(kMaskPaddingColor[static_cast<size_t>(channel)]);
  }
  padded_image.narrow(1, 0, valid_region.rows)
      .narrow(2, 0, valid_region.columns)
      .copy_(image::resize_image(image, valid_region.rows, valid_region.columns, image::ResampleFilter::kBilinear));
  return padded_image;
}

at::Tensor make_square_mask(const at::Tensor& mask, int64_t side) {
  const data::ValidRegion valid_region = compute_valid_region({.height = mask.size(0), .width = mask.size(1)}, side);
  at::Tensor padded_mask = at::zeros({side, side}, at::kByte);
  padded_mask.narrow(0, 0, valid_region.rows)
      .narrow(1, 0, valid_region.columns)
      .copy_(image::resize_mask(mask, valid_region.rows, valid_region.columns));
  return padded_mask;
}

image::DecodedMask read_mask(const io::MaskSource& source, image::ImageSize image_size) {
  auto decoded_mask = source.rle ? image::DecodedMask{.mask = image::decode_rle(*source.rle), .notice = {}}
                                 : image::decode_mask_with_notice(source.file, source.value);
  check_mask_size({.height = decoded_mask.mask.size(0), .width = decoded_mask.mask.size(1)}, image_size);
  return decoded_mask;
}

std::vector<int64_t> find_masked_image_indices(const io::Record& record) {
  std::vector<int64_t> images;
  for (const io::MaskSource& mask : record.masks) images.push_back(mask.image_index);
  std::ranges::sort(images);
  images.erase(std::unique(images.begin(), images.end()), images.end());
  return images;
}

std::vector<at::Tensor> load_masks(const io::Record& record) {
  std::vector<at::Tensor> masks;
  for (const io::MaskSource& source : record.masks) {
    const io::MediaRef& medium = record.images.at(static_cast<size_t>(source.image_index));
    masks.push_back(read_mask(source, image::read_image_size(medium)).mask);
  }
  return masks;
}

data::SegmentationMasks make_meta_masks(const io::Record& record, const data::Sample& sample,
                                        std::span<const image::ImageSize> image_sizes, const MaskInputSettings& input) {
  if (!record.mask_problem.empty()) {
    throw data::SampleError("unusable mask", fmt::format("sample {}: {}", record.id, record.mask_problem));
  }
  data::SegmentationMasks masks;
  masks.token_positions = find_mask_token_positions(sample, input.token_id);
  if (masks.token_positions.size() != record.masks.size()) {
    throw data::SampleError(
        "masks without tokens",
        fmt::format(
            "sample {} has {} masks and {} tokens {} in its answers; give one token per mask, in the same order",
            record.id, record.masks.size(), masks.token_positions.size(), input.token));
  }
  if (masks.empty()) return masks;
  const std::vector<int64_t> masked_image_indices = find_masked_image_indices(record);
  for (size_t index = 0; index < record.masks.size(); ++index) {
    const io::MaskSource& mask = record.masks[index];
    const image::ImageSize image_size = get_image_size(mask, image_sizes);
    rethrow_mask_error(record, index, [&] { check_mask_size(read_mask_source_size(mask), image_size); });
    masks.image_indices.push_back(std::ranges::find(masked_image_indices, mask.image_index) -
                                  masked_image_indices.begin());
    masks.valid_regions.push_back(compute_valid_region(image_size, input.side));
    masks.structure_names.push_back(mask.structure);
  }
  const auto bytes = at::TensorOptions(at::kByte).device(at::kMeta);
  masks.pixels = at::empty({std::ssize(masked_image_indices), 3, input.side, input.side}, bytes);
  masks.targets = at::empty({masks.count(), input.side, input.side}, bytes);
  return masks;
}

at::Tensor load_mask_targets(const io::Record& record, std::span<const image::ImageSize> image_sizes,
                             const image::Augmentation& augmentation, int64_t side, std::vector<io::Notice>& notices) {
  std::vector<at::Tensor> targets;
  for (size_t index = 0; index < record.masks.size(); ++index) {
    const io::MaskSource& source = record.masks[index];
    auto [mask, notice] =
        rethrow_mask_error(record, index, [&] { return read_mask(source, get_image_size(source, image_sizes)); });
    const bool is_reported = !notice || std::ranges::find(notices, notice->kind, &io::Notice::kind) != notices.end();
    if (!is_reported) notices.push_back(*std::move(notice));
    targets.push_back(make_square_mask(image::augment_mask(mask, augmentation), side));
  }
  return at::stack(targets);
}

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

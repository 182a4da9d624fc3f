#include "models/processing/mask_input.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/resize_mask.h"

namespace vlmtrain::models {

namespace {

/// SAM's pixel mean.
constexpr std::array<int64_t, 3> kPadding{124, 116, 104};

image::ImageSize size_of_source(const io::MaskSource& source) {
  if (!source.rle) return image::read_mask_size(source.file, source.value);
  return {.height = source.rle->height, .width = source.rle->width};
}

void check_size(image::ImageSize mask, image::ImageSize picture) {
  if (mask == picture) return;
  throw data_error("has {} x {} pixels and its picture {} x {}; a mask is of its picture's size", mask.width,
                   mask.height, picture.width, picture.height);
}

/// What `read` gives; its error is one of the record that names the mask.
template <class Read>
auto read_numbered(const io::Record& record, size_t number, const Read& read) {
  try {
    return read();
  } catch (const UserError& error) {
    const std::string& path = record.masks[number].file.path;
    const std::string name = path.empty() ? "" : fmt::format(" ({})", path);
    throw data::SampleError("unusable mask",
                            fmt::format("sample {}: mask {}{}: {}", record.id, number + 1, name, error.what()));
  }
}

image::ImageSize picture_of(const io::MaskSource& mask, std::span<const image::ImageSize> pictures) {
  return pictures[static_cast<size_t>(mask.image)];
}

std::vector<int64_t> mask_tokens(const data::Sample& sample, int64_t token_id) {
  std::vector<int64_t> found;
  for (int64_t place = 0; place < sample.tokens(); ++place) {
    const auto at = static_cast<size_t>(place);
    if (sample.token_ids[at] == token_id && sample.is_label[at] != 0) found.push_back(place);
  }
  return found;
}

}  // namespace

data::FilledPart filled_part(image::ImageSize size, int64_t side) {
  const int64_t longer = std::max(size.height, size.width);
  const auto scaled = [&](int64_t length) {
    return std::max<int64_t>(1, (2 * length * side + longer) / (2 * longer));  // rounded, halves up
  };
  return {.rows = scaled(size.height), .columns = scaled(size.width)};
}

at::Tensor square_picture(const at::Tensor& picture, int64_t side) {
  const data::FilledPart part = filled_part({.height = picture.size(1), .width = picture.size(2)}, side);
  at::Tensor square = at::empty({3, side, side}, at::kByte);
  for (int64_t channel = 0; channel < 3; ++channel) {
    square.select(0, channel).fill_(kPadding[static_cast<size_t>(channel)]);
  }
  square.narrow(1, 0, part.rows)
      .narrow(2, 0, part.columns)
      .copy_(image::resize(picture, part.rows, part.columns, image::Filter::kBilinear));
  return square;
}

at::Tensor square_mask(const at::Tensor& mask, int64_t side) {
  const data::FilledPart part = filled_part({.height = mask.size(0), .width = mask.size(1)}, side);
  at::Tensor square = at::zeros({side, side}, at::kByte);
  square.narrow(0, 0, part.rows).narrow(1, 0, part.columns).copy_(image::resize_mask(mask, part.rows, part.columns));
  return square;
}

image::DecodedMask read_mask(const io::MaskSource& source, image::ImageSize picture) {
  auto decoded = source.rle ? image::DecodedMask{.mask = image::decode_rle(*source.rle), .notice = {}}
                            : image::decode_mask_with_notice(source.file, source.value);
  check_size({.height = decoded.mask.size(0), .width = decoded.mask.size(1)}, picture);
  return decoded;
}

std::vector<int64_t> pictures_with_masks(const io::Record& record) {
  std::vector<int64_t> pictures;
  for (const io::MaskSource& mask : record.masks) pictures.push_back(mask.image);
  std::ranges::sort(pictures);
  pictures.erase(std::unique(pictures.begin(), pictures.end()), pictures.end());
  return pictures;
}

data::Masks outline_masks(const io::Record& record, const data::Sample& sample,
                          std::span<const image::ImageSize> pictures, const MaskInput& input) {
  if (!record.mask_problem.empty()) {
    throw data::SampleError("unusable mask", fmt::format("sample {}: {}", record.id, record.mask_problem));
  }
  data::Masks masks;
  masks.token_positions = mask_tokens(sample, input.token_id);
  if (masks.token_positions.size() != record.masks.size()) {
    throw data::SampleError(
        "masks without tokens",
        fmt::format("sample {} has {} masks and {} tokens {} in its answers; each mask wants one, in the same order",
                    record.id, record.masks.size(), masks.token_positions.size(), input.token));
  }
  if (masks.empty()) return masks;
  const std::vector<int64_t> drawn_in = pictures_with_masks(record);
  for (size_t number = 0; number < record.masks.size(); ++number) {
    const io::MaskSource& mask = record.masks[number];
    const image::ImageSize picture = picture_of(mask, pictures);
    read_numbered(record, number, [&] { check_size(size_of_source(mask), picture); });
    masks.pictures.push_back(std::ranges::find(drawn_in, mask.image) - drawn_in.begin());
    masks.filled.push_back(filled_part(picture, input.side));
    masks.structures.push_back(mask.structure);
  }
  const auto bytes = at::TensorOptions(at::kByte).device(at::kMeta);
  masks.pixels = at::empty({std::ssize(drawn_in), 3, input.side, input.side}, bytes);
  masks.targets = at::empty({masks.count(), input.side, input.side}, bytes);
  return masks;
}

at::Tensor mask_targets(const io::Record& record, std::span<const image::ImageSize> pictures,
                        const image::Augmentation& augmentation, int64_t side, std::vector<io::Notice>& notices) {
  std::vector<at::Tensor> targets;
  for (size_t number = 0; number < record.masks.size(); ++number) {
    const io::MaskSource& source = record.masks[number];
    auto [mask, notice] =
        read_numbered(record, number, [&] { return read_mask(source, picture_of(source, pictures)); });
    const bool is_known =
        !notice || std::ranges::any_of(notices, [&](const io::Notice& other) { return other.kind == notice->kind; });
    if (!is_known) notices.push_back(*std::move(notice));
    targets.push_back(square_mask(image::augment_mask(mask, augmentation), side));
  }
  return at::stack(targets);
}

}  // namespace vlmtrain::models

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/masks.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/image/augment.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

/// What a model that draws masks takes of a sample beside what its language model reads.
struct MaskInput {
  int64_t side = 1024;   ///< pixels of the squares that its mask encoder takes
  int64_t token_id = 0;  ///< of the token that stands for a mask
  std::string token{};   ///< "<SEG>"
};

/// Where a picture lies in a square: its longer side has the square's, the rest at the right or the bottom is padding
/// (Kirillov et al. 2023, arXiv 2304.02643, as SamImageProcessor of transformers does).
data::ValidRegion compute_filled_size(image::ImageSize size, int64_t side);

/// uint8 [3, height, width] → [3, side, side]: resized bilinearly, antialiased; padded with the colour that the encoder
/// takes for zero, rounded to bytes.
at::Tensor make_mask_image(const at::Tensor& image_size, int64_t side);

/// uint8 [height, width] of 0 and 1 → [side, side], by the nearest pixel; padded with 0.
at::Tensor make_square_mask(const at::Tensor& mask, int64_t side);

/// A mask in its picture's own size, uint8 [height, width]. data_error where it is none, or not of the picture's size.
image::DecodedMask read_mask(const io::MaskSource& source, image::ImageSize image_size);

/// The masks of a sample with all but values: `pixels` and `targets` are on the meta device. `image_sizes`: the sizes
/// of the record's pictures, in its order. data::SampleError where the record has other masks than tokens that stand
/// for them in its answers, or a mask is not of its picture's size, as far as headers tell.
data::Masks make_meta_masks(const io::Record& record, const data::Sample& sample,
                            std::span<const image::ImageSize> image_sizes, const MaskInput& input);

/// Which of the record's pictures the rows of Masks::pixels are.
std::vector<int64_t> find_images_with_masks(const io::Record& record);

/// The targets of make_meta_masks(). `augmentation` is that of the record's images. `notices` gets what is to be
/// reported of the files, at most one of a kind.
at::Tensor load_mask_targets(const io::Record& record, std::span<const image::ImageSize> image_sizes,
                             const image::Augmentation& augmentation, int64_t side, std::vector<io::Notice>& notices);

}  // namespace vlmtrain::models

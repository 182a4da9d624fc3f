#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/augment.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

/// The input of a mask model's encoder, and the token of its masks.
struct MaskInput {
  int64_t side = 1024;   ///< of the mask encoder's square input, in pixels
  int64_t token_id = 0;  ///< of a mask
  std::string token{};   ///< "<SEG>"
};

/// Returns the region of a square that an image fills: its longer side has the square's length, the
/// remainder at the right or bottom is padding (Kirillov et al. 2023, arXiv 2304.02643;
/// SamImageProcessor of transformers).
data::ValidRegion compute_filled_size(image::ImageSize size, int64_t side);

/// Resizes an image, uint8 [3, height, width] → [3, side, side], bilinearly with antialiasing. The
/// padding has the color that the encoder normalizes to zero, rounded to bytes.
at::Tensor make_mask_image(const at::Tensor& image_size, int64_t side);

/// Resizes a mask, uint8 [height, width] of 0 and 1 → [side, side], to the nearest pixel, padded
/// with 0.
at::Tensor make_square_mask(const at::Tensor& mask, int64_t side);

/// Returns a mask in the size of its image, uint8 [height, width]. Throws UserError (kBadData) if
/// it is invalid or of another size.
image::DecodedMask read_mask(const io::MaskSource& source, image::ImageSize image_size);

/// Returns the masks of a sample without values: `pixels` and `targets` are on the meta device.
/// `image_sizes` are those of the record's images. Throws data::SampleError if the record's masks
/// do not correspond to the mask tokens of its answers, or a mask's header has another size than
/// its image.
data::Masks make_meta_masks(const io::Record& record, const data::Sample& sample,
                            std::span<const image::ImageSize> image_sizes, const MaskInput& input);

/// Returns the indices of the record's images that have masks, which are the rows of Masks::pixels.
std::vector<int64_t> find_images_with_masks(const io::Record& record);

/// Returns the targets of make_meta_masks(). `augmentation` is that of the record's images. Appends
/// findings about the files to `notices`, at most one per kind.
at::Tensor load_mask_targets(const io::Record& record, std::span<const image::ImageSize> image_sizes,
                             const image::Augmentation& augmentation, int64_t side, std::vector<io::Notice>& notices);

}  // namespace vlmtrain::models

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

// The masks that these functions return are uint8 [height, width] of 0 and 1, contiguous, on the
// CPU. A pixel of 1 is "set".

/// Decodes a mask from a PNG file: gray values of 1 to 16 bits, RGB, or a palette. Alpha is
/// ignored. The value of a palette pixel is its index, not its color, as in segmentation data sets
/// (PASCAL VOC).
///
/// Without `value`, all pixels other than 0 (RGB: other than black) are set. In a gray file with
/// soft edges or noise, only pixels above half of the range are set (see src/image/mask_values.h).
/// With `value`, the pixels of that gray value or palette index are set. `value` is on the scale of
/// the file: 0 to 1 for 1 bit, 0 to 65535 for 16 bits. The EXIF orientation is applied as in
/// decode_image().
///
/// Throws UserError (kBadData) if the file is missing, corrupt, truncated, too large or not a PNG
/// (JPEG blurs the edges of a mask), if no pixel can have `value`, if only the alpha channel
/// varies, or, without `value`, if the file looks like a photograph. Thread-safe.
at::Tensor decode_mask(const io::MediaRef& file, std::optional<int64_t> value);

/// The result of decode_mask_with_notice().
struct DecodedMask {
  at::Tensor mask;
  std::optional<io::Notice> notice;  ///< a warning for a file with soft edges or several labels
};

/// Decodes a mask as decode_mask() does. Adds a notice if `value` is absent and the file has more
/// than two values.
DecodedMask decode_mask_with_notice(const io::MediaRef& file, std::optional<int64_t> value);

/// Returns the size of the result of decode_mask(), from a few small reads of the headers. Throws
/// the errors of decode_mask() that the headers reveal, including an invalid `value`. Thread-safe.
ImageSize read_mask_size(const io::MediaRef& file, std::optional<int64_t> value);

using io::encode_rle_counts;
using io::parse_rle;
using io::Rle;

/// Decodes a run-length encoding in the format of COCO: column by column, starting with a run of
/// zeros. REQUIRES: counts that io::parse_rle() accepts.
at::Tensor decode_rle(const Rle& rle);

/// Encodes a mask, uint8 [height, width] on the CPU; nonzero pixels count as set. The counts equal
/// those of pycocotools: only the first may be 0.
Rle encode_rle(const at::Tensor& mask);

/// Returns a mask of the set pixels that have an unset neighbor to the left, right, top or bottom.
/// Pixels outside of the mask are unset. `mask`: uint8 [height, width] on the CPU; nonzero pixels
/// count as set.
at::Tensor extract_mask_edge(const at::Tensor& mask);

/// Throws InternalError unless `mask` is uint8 [height, width] on the CPU and not empty.
void check_is_mask(const at::Tensor& mask);

}  // namespace vlmtrain::image

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/rle.h"

namespace vlmtrain::image {

// Segmentation masks are uint8 [height, width] of 0 and 1, contiguous, on the CPU.

/// Decodes a mask from a PNG file: gray values of 1 to 16 bits, RGB, or a palette. Alpha is
/// ignored. A palette is read by index, as segmentation data sets write it (PASCAL VOC), not by
/// color.
///
/// Without `value`, all pixels other than 0 (RGB: other than black) are set; in a gray file with
/// soft edges or noise, those above half of its range (see src/image/mask_values.h). With `value`,
/// the pixels of that gray value or palette index are set, on the scale of the file: 0 to 1 for 1
/// bit, 0 to 65535 for 16 bits. The EXIF orientation is applied as in decode_image().
///
/// Throws UserError (kBadData) if the file is missing, corrupt, truncated, too large or not a PNG
/// (JPEG blurs the edges of a mask), if no pixel can have `value`, if only the alpha channel has
/// content, or, without `value`, if the file looks like a photograph. Thread-safe.
at::Tensor decode_mask(const io::MediaRef& file, std::optional<int64_t> value);

/// The result of decode_mask_with_notice().
struct DecodedMask {
  at::Tensor mask;
  std::optional<io::Notice> notice;  ///< of files with soft edges or several labels
};

/// Decodes a mask as decode_mask() does, with a notice if the file has more than two values.
DecodedMask decode_mask_with_notice(const io::MediaRef& file, std::optional<int64_t> value);

/// Returns the size of decode_mask() from the first bytes of the file. Throws the errors that they
/// reveal.
ImageSize read_mask_size(const io::MediaRef& file, std::optional<int64_t> value);

using io::compress_counts;
using io::parse_rle;
using io::Rle;

/// Decodes run-length encoding in the format of COCO: column by column, zeros first.
/// REQUIRES: counts that io::parse_rle() accepts.
at::Tensor decode_rle(const Rle& rle);

/// Encodes a mask, in which nonzero pixels count as set. The counts equal those of pycocotools:
/// only the first may be 0.
Rle encode_rle(const at::Tensor& mask);

/// Returns the set pixels of a mask (nonzero counts as set) with an unset neighbor to the left,
/// right, top or bottom. Pixels outside of the mask are unset.
at::Tensor find_mask_edge(const at::Tensor& mask);

/// Throws InternalError unless `mask` is uint8 [height, width] on the CPU and not empty.
void check_is_mask(const at::Tensor& mask);

}  // namespace vlmtrain::image

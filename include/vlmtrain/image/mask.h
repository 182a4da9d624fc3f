#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/medium.h"
#include "vlmtrain/io/notice.h"
#include "vlmtrain/io/rle.h"

namespace vlmtrain::image {

// A mask says of each pixel of a picture whether it belongs to what is meant: uint8 [height, width] of 0 and 1,
// contiguous, on the CPU.

/// The mask in a PNG file: grey of 1 to 16 bits, RGB, or a palette, with or without alpha, which is not looked at. Of a
/// palette the indices count and not the colours, as segmentation data sets write them (PASCAL VOC).
///
/// Without `value` all that is not 0 belongs to the mask, of RGB what is not black; of a gray file with soft edges or
/// noise what is above half of its range (src/image/mask_values.h). With it the pixels of that grey
/// value or palette index, on the file's own scale: 0 to 1 of 1 bit, 0 to 65535 of 16. The mask is turned as
/// decode_image turns a picture with the same EXIF orientation, and read_image_size tells its size.
///
/// A data error where the file is missing, damaged, cut off, too large or no PNG (JPEG blurs the edges of a mask), and
/// where no pixel can have `value`: RGB, or beyond the file's bits; also where nothing but the alpha channel has a
/// shape, which is then what is meant; and, without `value`, for an image rather than a mask. Thread-safe.
at::Tensor decode_mask(const io::MediaRef& file, std::optional<int64_t> value);

struct DecodedMask {
  at::Tensor mask;
  std::optional<io::Notice> notice;  ///< of a file that says more than mask or not: soft edges, several labels
};

/// The same, with what to report of the file.
DecodedMask decode_mask_with_notice(const io::MediaRef& file, std::optional<int64_t> value);

/// Its size, from the first bytes of the file, with the errors that these show.
ImageSize read_mask_size(const io::MediaRef& file, std::optional<int64_t> value);

using io::compress_counts;
using io::parse_rle;
using io::Rle;

/// REQUIRES: counts as parse_rle checks them.
at::Tensor decode_rle(const Rle& rle);

/// The counts that pycocotools gives: none but the first is 0. `mask`: anything but 0 belongs to it.
Rle encode_rle(const at::Tensor& mask);

}  // namespace vlmtrain::image

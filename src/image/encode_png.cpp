#include <png.h>

#include "image/mask_check.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/encode.h"

namespace vlmtrain::image {
namespace {

/// Rows of interleaved bytes, [height, width, channels] or [height, width], contiguous.
std::string encode_rows(const at::Tensor& rows, png_uint_32 format) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(rows.size(0));
  png.width = static_cast<png_uint_32>(rows.size(1));
  png.format = format;
  const auto* const pixels = rows.const_data_ptr<uint8_t>();
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string encoded(size, '\0');
  const int succeeded = png_image_write_to_memory(&png, encoded.data(), &size, /*convert_to_8_bit=*/0, pixels,
                                                  /*row_stride=*/0, /*colormap=*/nullptr);
  VLMTRAIN_CHECK(succeeded != 0, "libpng cannot write {} x {} pixels: {}", rows.size(1), rows.size(0), png.message);
  encoded.resize(size);
  return encoded;
}

}  // namespace

std::string encode_png(const at::Tensor& image) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "a picture to encode is uint8 [3, height, width] on the CPU");
  return encode_rows(image.permute({1, 2, 0}).contiguous(), PNG_FORMAT_RGB);
}

std::string encode_mask_png(const at::Tensor& mask) {
  check_is_mask(mask);
  return encode_rows(mask.ne(0).to(at::kByte).mul_(255).contiguous(), PNG_FORMAT_GRAY);
}

}  // namespace vlmtrain::image

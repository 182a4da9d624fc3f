#include <png.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/encode.h"

namespace vlmtrain::image {

std::string encode_png(const at::Tensor& picture) {
  VLMTRAIN_CHECK(picture.dim() == 3 && picture.size(0) == 3 && picture.scalar_type() == at::kByte && picture.is_cpu(),
                 "a picture to encode is uint8 [3, height, width] on the CPU");
  const at::Tensor rows = picture.permute({1, 2, 0}).contiguous();
  png_image info{};
  info.version = PNG_IMAGE_VERSION;
  info.height = static_cast<png_uint_32>(rows.size(0));
  info.width = static_cast<png_uint_32>(rows.size(1));
  info.format = PNG_FORMAT_RGB;
  const auto* const pixels = rows.const_data_ptr<uint8_t>();
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(info);
  std::string encoded(size, '\0');
  const int done = png_image_write_to_memory(&info, encoded.data(), &size, /*convert_to_8_bit=*/0, pixels,
                                             /*row_stride=*/0, /*colormap=*/nullptr);
  VLMTRAIN_CHECK(done != 0, "libpng cannot write {} x {} pixels: {}", rows.size(1), rows.size(0), info.message);
  encoded.resize(size);
  return encoded;
}

}  // namespace vlmtrain::image

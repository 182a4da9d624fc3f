#include "vlmtrain/image/encode.h"

// jpeglib.h requires size_t and FILE to be declared before it.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <png.h>

#include <cstdlib>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {

namespace {

/// Prints libjpeg's message and aborts. Encoding pixels in memory fails only if memory is
/// exhausted. libjpeg's default handler would call exit().
[[noreturn]] void abort_on_error(j_common_ptr compressor) {
  (*compressor->err->output_message)(compressor);
  std::abort();
}

/// Encodes `rows`, contiguous uint8 [height, width, channels] or [height, width], as PNG. `format`:
/// one of libpng's PNG_FORMAT_* with that number of channels.
std::string encode_interleaved_png(const at::Tensor& rows, png_uint_32 format) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(rows.size(0));
  png.width = static_cast<png_uint_32>(rows.size(1));
  png.format = format;
  const auto* const pixels = rows.const_data_ptr<uint8_t>();
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string encoded_png(size, '\0');
  const int succeeded = png_image_write_to_memory(&png, encoded_png.data(), &size, /*convert_to_8_bit=*/0, pixels,
                                                  /*row_stride=*/0, /*colormap=*/nullptr);
  VLMTRAIN_CHECK(succeeded != 0, "libpng cannot encode {} x {} pixels: {}", rows.size(1), rows.size(0), png.message);
  encoded_png.resize(size);
  return encoded_png;
}

}  // namespace

std::string encode_jpeg(const at::Tensor& image, int quality) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to encode must be uint8 [3, height, width] on the CPU");
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();

  jpeg_error_mgr errors{};
  jpeg_compress_struct compressor{};
  compressor.err = jpeg_std_error(&errors);
  errors.error_exit = abort_on_error;
  jpeg_create_compress(&compressor);
  unsigned char* bytes = nullptr;
  unsigned long encoded_size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&compressor, &bytes, &encoded_size);
  compressor.image_height = static_cast<JDIMENSION>(rows.size(0));
  compressor.image_width = static_cast<JDIMENSION>(rows.size(1));
  compressor.input_components = 3;
  compressor.in_color_space = JCS_RGB;
  jpeg_set_defaults(&compressor);
  jpeg_set_quality(&compressor, quality, TRUE);
  jpeg_start_compress(&compressor, TRUE);
  auto* const pixels = static_cast<JSAMPLE*>(rows.data_ptr());
  while (compressor.next_scanline < compressor.image_height) {
    JSAMPROW row = pixels + size_t{compressor.next_scanline} * compressor.image_width * 3;
    jpeg_write_scanlines(&compressor, &row, 1);
  }
  jpeg_finish_compress(&compressor);
  jpeg_destroy_compress(&compressor);
  std::string encoded_jpeg(reinterpret_cast<const char*>(bytes), encoded_size);
  std::free(bytes);
  return encoded_jpeg;
}

std::string encode_png(const at::Tensor& image) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to encode must be uint8 [3, height, width] on the CPU");
  return encode_interleaved_png(image.permute({1, 2, 0}).contiguous(), PNG_FORMAT_RGB);
}

std::string encode_mask_png(const at::Tensor& mask) {
  check_is_mask(mask);
  return encode_interleaved_png(mask.ne(0).to(at::kByte).mul_(255).contiguous(), PNG_FORMAT_GRAY);
}

}  // namespace vlmtrain::image

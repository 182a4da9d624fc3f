#include "vlmtrain/image/encode.h"

// jpeglib.h wants size_t and FILE declared before it.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <cstdlib>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// libjpeg's default ends the process. Nothing between here and the caller is C++ that longjmp would have to unwind,
/// but an encoder of pixels in memory fails only where memory is exhausted, which is no one's to handle.
[[noreturn]] void abort_on_error(j_common_ptr compressor) {
  (*compressor->err->output_message)(compressor);
  std::abort();
}

}  // namespace

std::string encode_jpeg(const at::Tensor& image, int quality) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "a picture to encode is uint8 [3, height, width] on the CPU");
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
  std::string encoded(reinterpret_cast<const char*>(bytes), encoded_size);
  std::free(bytes);
  return encoded;
}

}  // namespace vlmtrain::image

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
[[noreturn]] void leave(j_common_ptr info) {
  (*info->err->output_message)(info);
  std::abort();
}

}  // namespace

std::string encode_jpeg(const at::Tensor& picture, int quality) {
  VLMTRAIN_CHECK(picture.dim() == 3 && picture.size(0) == 3 && picture.scalar_type() == at::kByte && picture.is_cpu(),
                 "a picture to encode is uint8 [3, height, width] on the CPU");
  const at::Tensor rows = picture.permute({1, 2, 0}).contiguous();

  jpeg_error_mgr errors{};
  jpeg_compress_struct info{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = leave;
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(rows.size(0));
  info.image_width = static_cast<JDIMENSION>(rows.size(1));
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  auto* const pixels = static_cast<JSAMPLE*>(rows.data_ptr());
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels + size_t{info.next_scanline} * info.image_width * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string encoded(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return encoded;
}

}  // namespace vlmtrain::image

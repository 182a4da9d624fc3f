#include "vlmtrain/kernels/patchify.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype) {
  const at::Tensor &bytes = pixels.bytes, &order = pixels.image_indices;
  VLMTRAIN_CHECK(bytes.scalar_type() == at::kByte && bytes.dim() == 4 && bytes.size(1) == kNumPixelChannels &&
                     bytes.is_contiguous(),
                 "expected contiguous uint8 pixels [n, 3, height, width]");
  VLMTRAIN_CHECK(!order.defined() || (order.scalar_type() == at::kLong && order.is_contiguous()),
                 "expected a contiguous int64 image order [n]");
  const int64_t height = bytes.size(2), width = bytes.size(3), columns = kNumPixelChannels * patch.height * patch.width;
  // The kernel indexes a patch with 32 bits.
  VLMTRAIN_CHECK(patch.height > 0 && patch.width > 0 && patch.height <= height && patch.width <= width &&
                     columns <= std::numeric_limits<int32_t>::max(),
                 "cannot split images of {}×{} into patches of {}×{}", height, width, patch.height, patch.width);
  at::Tensor rows = at::empty({pixels.num_images() * (height / patch.height) * (width / patch.width), columns},
                              bytes.options().dtype(dtype));
  if (rows.numel() == 0) return rows;
  PatchifyArgs args{.element = get_element_type(rows),
                    .num_images = pixels.num_images(),
                    .height = height,
                    .width = width,
                    .patch_height = patch.height,
                    .patch_width = patch.width,
                    .bytes = bytes.const_data_ptr<uint8_t>(),
                    .order = order.defined() ? order.const_data_ptr<int64_t>() : nullptr,
                    .mean = {},
                    .deviation = {},
                    .rows = rows.mutable_data_ptr()};
  const auto normalization = image::to_byte_normalization(pixels.normalization);
  std::ranges::copy(normalization.mean, std::begin(args.mean));
  std::ranges::copy(normalization.std, std::begin(args.deviation));
  if (patch.width == width && height % patch.height == 0) {
    // The lines of such a patch are contiguous. Treating them as one line allows larger packs.
    args.height = height / patch.height;
    args.width = patch.height * width;
    args.patch_height = 1;
    args.patch_width = args.width;
  }
  KernelLaunch("vlmtrain::patchify", {bytes, order}, {rows})(launchers().patchify, args);
  return rows;
}

}  // namespace vlmtrain::kernels

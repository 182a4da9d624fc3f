#include "vlmtrain/kernels/patchify.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype, int64_t columns) {
  const at::Tensor &bytes = pixels.bytes, &order = pixels.image_indices;
  VLMTRAIN_CHECK(bytes.scalar_type() == at::kByte && bytes.dim() == 4 && bytes.size(1) == kNumPixelChannels &&
                     bytes.is_contiguous(),
                 "expected contiguous uint8 pixels [n, 3, height, width]");
  VLMTRAIN_CHECK(!order.defined() || (order.scalar_type() == at::kLong && order.is_contiguous()),
                 "expected a contiguous int64 image order [n]");
  const int64_t height = bytes.size(2), width = bytes.size(3),
                patch_bytes = kNumPixelChannels * patch.height * patch.width;
  // The kernel indexes a patch with 32 bits.
  VLMTRAIN_CHECK(patch.height > 0 && patch.width > 0 && patch.height <= height && patch.width <= width &&
                     patch_bytes <= std::numeric_limits<int32_t>::max() && columns >= patch_bytes,
                 "cannot split images of {}×{} into patches of {}×{} with {} columns", height, width, patch.height,
                 patch.width, columns);
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
                    .row_stride = columns,
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

namespace reference {

at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype, int64_t columns) {
  const at::Tensor bytes =
      pixels.image_indices.defined() ? pixels.bytes.index_select(0, pixels.image_indices) : pixels.bytes;
  // Unfolds twice to be independent of extract_patch_rows() (models/network/layers.cpp).
  const int64_t patch_bytes = kNumPixelChannels * patch.height * patch.width;
  const at::Tensor rows = image::normalize_pixels(bytes, pixels.normalization)
                              .to(dtype)
                              .unfold(2, patch.height, patch.height)
                              .unfold(3, patch.width, patch.width)
                              .permute({0, 2, 3, 1, 4, 5})
                              .reshape({-1, patch_bytes});
  return at::constant_pad_nd(rows, {0, columns - patch_bytes});
}

}  // namespace reference

std::vector<ComparedTensors> test_patchify(RandomInputs& inputs, const KernelTestSizes& sizes) {
  const image::Normalization normalization{{0.5, 0.25, 0.75}, {0.25, 0.5, 0.3}, 1.0 / 255};
  const at::ScalarType dtype = inputs.make_tensor({1}).scalar_type();
  const at::Tensor bytes = inputs.make_byte_tensor({3, 3, sizes.image_size.height, sizes.image_size.width});
  const at::Tensor order = at::arange(2, bytes.options().dtype(at::kLong)).mul_(-1).add_(2);
  std::vector<ComparedTensors> compared_tensors;
  // Patch widths that the kernel reads in packs of 16 bytes, in pairs, byte by byte, and as whole
  // lines.
  for (const auto& patch : {image::ImageSize{16, 16}, {14, 14}, {5, 7}, {11, sizes.image_size.width}}) {
    const image::ByteImages pixels{bytes, normalization, patch.width == 14 ? order : at::Tensor()};
    const int64_t patch_bytes = kNumPixelChannels * patch.height * patch.width;
    for (const int64_t columns : {patch_bytes, patch_bytes + 4}) {
      compared_tensors.push_back(
          {patchify(pixels, patch, dtype, columns), reference::patchify(pixels, patch, dtype, columns)});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels

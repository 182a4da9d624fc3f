#include "models/network/layers.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::models {

Activation parse_activation(std::string_view name, std::string_view key, const std::string& source) {
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "quick_gelu") return Activation::kQuickGelu;
  if (name == "relu") return Activation::kRelu;
  throw data_error("{}: {} {} is not supported; supported: gelu, gelu_pytorch_tanh, quick_gelu, relu", source, key,
                   name);
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  return nn::apply_activation(activation, x).value();
}

namespace {

int64_t count_patch_columns(image::ImageSize patch) {
  return 3 * patch.height * patch.width;
}

/// Returns the normalized pixels of each patch, [images · patches, columns], ordered by channel, then
/// row. Columns beyond count_patch_columns(patch) are zero.
at::Tensor extract_patch_rows(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype,
                              int64_t columns) {
  if (kernels::is_available(kernels::Kernel::kPatchify, pixels.bytes) && dtype != at::kDouble) {
    return kernels::patchify(pixels, patch, dtype, columns);
  }
  const at::Tensor bytes =
      pixels.image_indices.defined() ? pixels.bytes.index_select(0, pixels.image_indices) : pixels.bytes;
  const int64_t images = bytes.size(0), patches_per_column = bytes.size(2) / patch.height,
                patches_per_row = bytes.size(3) / patch.width;
  const at::Tensor rows = image::normalize_pixels(bytes, pixels.normalization)
                              .to(dtype)
                              .narrow(2, 0, patches_per_column * patch.height)
                              .narrow(3, 0, patches_per_row * patch.width)
                              .view({images, 3, patches_per_column, patch.height, patches_per_row, patch.width})
                              .permute({0, 2, 4, 1, 3, 5})
                              .reshape({images * patches_per_column * patches_per_row, count_patch_columns(patch)});
  return nn::pad_columns(rows, columns);
}

}  // namespace

at::Tensor embed_patches(const image::ByteImages& pixels, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor flat_weight = nn::pad_to_aligned_width(weight.flatten(1));
  // Frames stored one below the other form one patch of frames · patch height rows, so the height
  // follows from the number of weights.
  const int64_t width = weight.size(-1), height = weight[0].numel() / (3 * width);
  return nn::linear(extract_patch_rows(pixels, {height, width}, weight.scalar_type(), flat_weight.size(1)), flat_weight,
                    bias);
}

at::Tensor normalize_images(const image::ByteImages& pixels, at::ScalarType dtype) {
  const int64_t height = pixels.bytes.size(2), width = pixels.bytes.size(3);
  return extract_patch_rows(pixels, {height, width}, dtype, count_patch_columns({height, width}))
      .view({pixels.num_images(), 3, height, width});
}

at::Tensor pixel_shuffle(const at::Tensor& patches, int64_t side, int64_t scale) {
  const int64_t features = patches.size(1);
  const int64_t squares_per_side = side / scale;
  // [tiles, row of squares, row in square, column of squares, column in square · features]
  return patches.view({-1, squares_per_side, scale, squares_per_side, scale * features})
      .transpose(2, 3)
      .reshape({-1, scale * scale * features});
}

}  // namespace vlmtrain::models

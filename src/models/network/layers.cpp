#include "models/network/layers.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/nn/layers/linear.h"

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

/// Returns the normalized pixels of each patch, [images · patches, 3 · patch.height · patch.width],
/// ordered by channel, then row.
at::Tensor extract_patch_rows(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype) {
  if (kernels::is_available(kernels::Kernel::kPatchify, pixels.bytes) && dtype != at::kDouble) {
    return kernels::patchify(pixels, patch, dtype);
  }
  const at::Tensor bytes =
      pixels.image_indices.defined() ? pixels.bytes.index_select(0, pixels.image_indices) : pixels.bytes;
  const int64_t images = bytes.size(0), rows = bytes.size(2) / patch.height, columns = bytes.size(3) / patch.width;
  return image::normalize_pixels(bytes, pixels.normalization)
      .to(dtype)
      .narrow(2, 0, rows * patch.height)
      .narrow(3, 0, columns * patch.width)
      .view({images, 3, rows, patch.height, columns, patch.width})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({images * rows * columns, 3 * patch.height * patch.width});
}

}  // namespace

at::Tensor embed_patches(const image::ByteImages& pixels, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor flat_weight = weight.flatten(1);
  // Frames stored one below the other form one patch of frames · patch height rows, so the height
  // follows from the number of weights.
  const int64_t width = weight.size(-1), height = flat_weight.size(1) / (3 * width);
  return nn::linear(extract_patch_rows(pixels, {height, width}, weight.scalar_type()), flat_weight, bias);
}

at::Tensor normalize_images(const image::ByteImages& pixels, at::ScalarType dtype) {
  const int64_t height = pixels.bytes.size(2), width = pixels.bytes.size(3);
  return extract_patch_rows(pixels, {height, width}, dtype).view({pixels.num_images(), 3, height, width});
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

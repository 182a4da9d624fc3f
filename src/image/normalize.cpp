#include "vlmtrain/image/normalize.h"

#include <ATen/ops/empty.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Returns the values as float32 [3, 1, 1], filled on the device. A tensor, since PyTorch's CUDA
/// division by a Scalar multiplies by its reciprocal, which rounds differently.
at::Tensor make_channel_tensor(const std::array<float, 3>& values, const at::Device& device) {
  at::Tensor result = at::empty({3, 1, 1}, at::TensorOptions(at::kFloat).device(device));
  for (int64_t channel = 0; channel < 3; ++channel) result.select(0, channel).fill_(values[channel]);
  return result;
}

}  // namespace

ByteNormalization to_byte_normalization(const Normalization& normalization) {
  const auto inverse_rescale_factor = static_cast<float>(1.0 / normalization.rescale_factor);
  ByteNormalization result{};
  for (size_t channel = 0; channel < 3; ++channel) {
    result.mean[channel] = static_cast<float>(normalization.mean[channel]) * inverse_rescale_factor;
    result.std[channel] = static_cast<float>(normalization.std[channel]) * inverse_rescale_factor;
  }
  return result;
}

at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization) {
  VLMTRAIN_CHECK(pixels.scalar_type() == at::kByte && pixels.dim() == 4 && pixels.size(1) == 3,
                 "pixels to normalize must be uint8 [n, 3, height, width]");
  const auto [mean, std] = to_byte_normalization(normalization);
  at::Tensor result = pixels.to(at::kFloat);
  result.sub_(make_channel_tensor(mean, pixels.device()));
  result.div_(make_channel_tensor(std, pixels.device()));
  return result;
}

}  // namespace vlmtrain::image

#include "vlmtrain/image/normalize.h"

#include <ATen/ops/empty.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// [3, 1, 1] on the device, filled there. Not a Scalar: CUDA's division by one multiplies with its reciprocal, which
/// rounds differently.
at::Tensor per_channel(const std::array<double, 3>& values, double rescale_factor, const at::Device& device) {
  at::Tensor result = at::empty({3, 1, 1}, at::TensorOptions(at::kFloat).device(device));
  const auto inverse = static_cast<float>(1.0 / rescale_factor);
  for (int64_t channel = 0; channel < 3; ++channel) {
    result.select(0, channel).fill_(static_cast<float>(values[channel]) * inverse);
  }
  return result;
}

}  // namespace

at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization) {
  VLMTRAIN_CHECK(pixels.scalar_type() == at::kByte && pixels.dim() == 4 && pixels.size(1) == 3,
                 "pixels to normalise are uint8 [n, 3, height, width]");
  at::Tensor result = pixels.to(at::kFloat);
  result.sub_(per_channel(normalization.mean, normalization.rescale_factor, pixels.device()));
  result.div_(per_channel(normalization.std, normalization.rescale_factor, pixels.device()));
  return result;
}

}  // namespace vlmtrain::image

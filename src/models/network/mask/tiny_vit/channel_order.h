#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::models {

/// [pictures, channels, height, width], as convolutions take it → [pictures, height, width, channels], as norms and
/// Linears do, contiguous.
inline at::Tensor to_channels_last(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).contiguous();
}

/// The way back, a view.
inline at::Tensor to_channels_first(const at::Tensor& x) {
  return x.permute({0, 3, 1, 2});
}

}  // namespace vlmtrain::models

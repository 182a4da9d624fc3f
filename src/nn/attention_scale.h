#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

namespace vlmtrain::nn {

/// What scores are multiplied by before the softmax; `query` [..., head_dim].
inline double attention_scale(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

}  // namespace vlmtrain::nn

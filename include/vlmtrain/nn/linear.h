#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::nn {

/// y = x Wᵀ (+ b); weight [out, in], bias [out].
class Linear {
 public:
  Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias);

  /// x [rows, in] → [rows, out]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  at::Tensor bias_;  // undefined: none
};

}  // namespace vlmtrain::nn

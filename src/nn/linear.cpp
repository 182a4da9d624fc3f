#include "vlmtrain/nn/linear.h"

#include <ATen/ops/linear.h>

namespace vlmtrain::nn {

Linear::Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias)
    : weight_(scope.parameter("weight", {out_features, in_features})) {
  if (bias) bias_ = scope.parameter("bias", {out_features});
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight_, bias_);
}

}  // namespace vlmtrain::nn

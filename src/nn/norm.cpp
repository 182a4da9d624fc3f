#include "vlmtrain/nn/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

namespace vlmtrain::nn {

LayerNorm::LayerNorm(const ParameterScope& scope, int64_t features, double eps)
    : weight_(scope.parameter("weight", {features}, InitialValues::ones())),
      bias_(scope.parameter("bias", {features}, InitialValues::zeros())),
      eps_(eps) {}

at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, weight_, bias_, eps_);
}

RmsNorm::RmsNorm(const ParameterScope& scope, int64_t features, double eps)
    : weight_(scope.parameter("weight", {features}, InitialValues::ones())), eps_(eps) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  return at::rms_norm(x, {x.size(-1)}, weight_, eps_);
}

}  // namespace vlmtrain::nn

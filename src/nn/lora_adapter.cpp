#include "vlmtrain/nn/lora_adapter.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

#include "vlmtrain/base/rng.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::nn {

LoraAdapter::LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const at::Tensor& place_of_a,
                         int64_t in_features, int64_t out_features)
    : a_(scope.adapter_parameter("lora_A.weight", {settings.rank, in_features},
                                 InitialValues::uniform(1 / std::sqrt(static_cast<double>(in_features))), place_of_a)),
      b_(scope.adapter_parameter("lora_B.weight", {out_features, settings.rank}, InitialValues::zeros())),
      scale_(settings.scale()),
      dropout_(settings.dropout),
      dropout_layer_(stream_seed(0, scope.path())) {
  if (settings.use_dora) {
    magnitude_ = scope.adapter_parameter("lora_magnitude_vector", {out_features}, InitialValues::ones());
  }
}

bool LoraAdapter::drops() const {
  return dropout_ > 0 && gradients_wanted();
}

ReadersDropout LoraAdapter::draw_dropout(const at::Tensor& x, int64_t count) const {
  return {x, count, dropout_, dropout_layer_};
}

at::Tensor LoraAdapter::with_dora(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) const {
  const at::Tensor input = drops() ? unit_dropout(x, dropout_, dropout_layer_) : x;
  // In place, in the product's own kernel: no other tensor of [rows, out] comes into being, here or in the backward
  // pass.
  const at::Tensor adapted =
      nn::linear(input, weight, {}).addmm_(nn::linear(input, a_, {}), b_.t(), /*beta=*/1, /*alpha=*/scale_);
  const at::Tensor rescaled = adapted * length_factor(weight);
  if (drops()) return nn::linear(x - input, weight, bias) + rescaled;
  return bias.defined() ? rescaled + bias : rescaled;
}

at::Tensor LoraAdapter::length_factor(const LinearWeight& weight) const {
  const auto dtype = magnitude_.scalar_type();
  at::Tensor lengths;
  {
    const at::NoGradGuard no_gradients;
    const at::Tensor values = weight.values();
    lengths = row_lengths(weight.is_quantized() ? values.addmm_(b_, a_, /*beta=*/1, /*alpha=*/scale_)
                                                : at::addmm(values, b_, a_, /*beta=*/1, /*alpha=*/scale_));
  }
  return (magnitude_.to(at::toOpMathType(dtype)) / lengths).to(dtype);
}

at::Tensor row_lengths(const at::Tensor& weight) {
  return at::linalg_vector_norm(weight, 2, /*dim=*/1, /*keepdim=*/false, at::toOpMathType(weight.scalar_type()));
}

}  // namespace vlmtrain::nn

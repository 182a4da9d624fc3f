#include "vlmtrain/nn/layers/lora_adapter.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

#include "vlmtrain/base/random.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::nn {

LoraAdapter::LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const at::Tensor& a_storage,
                         int64_t in_features, int64_t out_features)
    : a_(scope.add_adapter_parameter("lora_A.weight", {settings.rank, in_features},
                                     InitialValues::uniform(1 / std::sqrt(static_cast<double>(in_features))),
                                     a_storage)),
      b_(scope.add_adapter_parameter("lora_B.weight", {out_features, settings.rank}, InitialValues::zeros())),
      scale_(settings.scale()),
      dropout_probability_(settings.dropout),
      dropout_layer_id_(derive_stream_seed(0, scope.path())) {
  if (settings.use_dora) {
    magnitude_ = scope.add_adapter_parameter("lora_magnitude_vector", {out_features}, InitialValues::ones());
  }
}

bool LoraAdapter::is_dropout_active() const {
  return dropout_probability_ > 0 && is_grad_needed();
}

IndependentDropouts LoraAdapter::make_dropouts(const at::Tensor& x, int64_t count) const {
  return {x, count, dropout_probability_, dropout_layer_id_};
}

at::Tensor LoraAdapter::forward_dora(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) const {
  const at::Tensor input = is_dropout_active() ? segment_dropout(x, dropout_probability_, dropout_layer_id_) : x;
  // addmm_ adds B A in place within the matrix product, so neither pass allocates another tensor
  // [rows, out].
  const at::Tensor merged_output =
      nn::linear(input, weight, {}).addmm_(nn::linear(input, a_, {}), b_.t(), /*beta=*/1, /*alpha=*/scale_);
  const at::Tensor scaled_output = merged_output * compute_mag_norm_scale(weight);
  // As in PEFT, dropped elements still pass through the base weight.
  if (is_dropout_active()) return nn::linear(x - input, weight, bias) + scaled_output;
  return bias.defined() ? scaled_output + bias : scaled_output;
}

at::Tensor LoraAdapter::compute_mag_norm_scale(const LinearWeight& weight) const {
  const auto dtype = magnitude_.scalar_type();
  at::Tensor row_norms;
  {
    const at::NoGradGuard no_gradients;
    const at::Tensor values = weight.values();
    // Dequantized values are a new tensor, which may be overwritten.
    row_norms = compute_row_norms(weight.is_quantized() ? values.addmm_(b_, a_, /*beta=*/1, /*alpha=*/scale_)
                                                        : at::addmm(values, b_, a_, /*beta=*/1, /*alpha=*/scale_));
  }
  return (magnitude_.to(at::toOpMathType(dtype)) / row_norms).to(dtype);
}

at::Tensor compute_row_norms(const at::Tensor& weight) {
  return at::linalg_vector_norm(weight, 2, /*dim=*/1, /*keepdim=*/false, at::toOpMathType(weight.scalar_type()));
}

}  // namespace vlmtrain::nn

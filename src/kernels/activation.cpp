#include "vlmtrain/kernels/activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  at::Tensor value = at::empty_like(x);
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::activate", {x}, {value})(launchers().activate, Activate{.element = get_element_type(x),
                                                                                  .function = function,
                                                                                  .count = x.numel(),
                                                                                  .gradient = nullptr,
                                                                                  .x = x.const_data_ptr(),
                                                                                  .result = value.mutable_data_ptr()});
  return value;
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::activation_backward", {gradient, x}, {dx})(launchers().activate,
                                                                     Activate{.element = get_element_type(x),
                                                                              .function = function,
                                                                              .count = x.numel(),
                                                                              .gradient = gradient.const_data_ptr(),
                                                                              .x = x.const_data_ptr(),
                                                                              .result = dx.mutable_data_ptr()});
  return dx;
}

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation) {
  const int64_t features = x.size(-1) / 2;
  at::Tensor value = at::empty({x.size(0), features}, x.options());
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::gated_activation", {x}, {value})(launchers().gated_activation_forward,
                                                           GatedActivationForward{.element = get_element_type(x),
                                                                                  .activation = activation,
                                                                                  .rows = x.size(0),
                                                                                  .features = features,
                                                                                  .x = x.const_data_ptr(),
                                                                                  .value = value.mutable_data_ptr()});
  return value;
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::gated_activation_backward", {gradient, x}, {dx})(
      launchers().gated_activation_backward, GatedActivationBackward{.element = get_element_type(x),
                                                                     .activation = activation,
                                                                     .rows = x.size(0),
                                                                     .features = x.size(-1) / 2,
                                                                     .gradient = gradient.const_data_ptr(),
                                                                     .x = x.const_data_ptr(),
                                                                     .dx = dx.mutable_data_ptr()});
  return dx;
}

}  // namespace vlmtrain::kernels

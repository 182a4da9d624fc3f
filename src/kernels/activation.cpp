#include "vlmtrain/kernels/activation.h"

#include <ATen/ops/empty_like.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  at::Tensor value = at::empty_like(x);
  if (value.numel() == 0) return value;
  Launch("vlmtrain::activate", {x}, {value})(launchers().activate, Activate{.element = element_of(x),
                                                                            .function = function,
                                                                            .count = x.numel(),
                                                                            .gradient = nullptr,
                                                                            .x = x.const_data_ptr(),
                                                                            .result = value.mutable_data_ptr()});
  return value;
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  at::Tensor of_x = at::empty_like(x);
  if (of_x.numel() == 0) return of_x;
  Launch("vlmtrain::activation_backward", {gradient, x}, {of_x})(launchers().activate,
                                                                 Activate{.element = element_of(x),
                                                                          .function = function,
                                                                          .count = x.numel(),
                                                                          .gradient = gradient.const_data_ptr(),
                                                                          .x = x.const_data_ptr(),
                                                                          .result = of_x.mutable_data_ptr()});
  return of_x;
}

}  // namespace vlmtrain::kernels

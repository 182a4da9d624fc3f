#include "vlmtrain/kernels/gate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

at::Tensor gate(const at::Tensor& x, GateActivation activation) {
  const int64_t features = x.size(-1) / 2;
  at::Tensor value = at::empty({x.size(0), features}, x.options());
  if (value.numel() == 0) return value;
  Launch("vlmtrain::gate", {x}, {value})(launchers().gate_forward, GateForward{.element = element_of(x),
                                                                               .activation = activation,
                                                                               .rows = x.size(0),
                                                                               .features = features,
                                                                               .x = x.const_data_ptr(),
                                                                               .value = value.mutable_data_ptr()});
  return value;
}

at::Tensor gate_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  at::Tensor of_x = at::empty_like(x);
  if (of_x.numel() == 0) return of_x;
  Launch("vlmtrain::gate_backward", {gradient, x}, {of_x})(launchers().gate_backward,
                                                           GateBackward{.element = element_of(x),
                                                                        .activation = activation,
                                                                        .rows = x.size(0),
                                                                        .features = x.size(-1) / 2,
                                                                        .gradient = gradient.const_data_ptr(),
                                                                        .x = x.const_data_ptr(),
                                                                        .of_x = of_x.mutable_data_ptr()});
  return of_x;
}

}  // namespace vlmtrain::kernels

#include "vlmtrain/kernels/rotate.h"

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

Rope::Heads make_heads(const at::Tensor& output, const at::Tensor& input) {
  VLMTRAIN_CHECK(input.stride(2) == 1 && output.stride(2) == 1 && input.stride(1) == input.size(2) &&
                     output.stride(1) == output.size(2),
                 "heads of a row lie one after the other");
  return {.from = input.const_data_ptr(),
          .to = output.mutable_data_ptr(),
          .from_stride = input.stride(0),
          .to_stride = output.stride(0),
          .heads = input.size(1)};
}

}  // namespace

void rope(const Heads& output, const Heads& input, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  if (input.query.size(0) == 0) return;
  KernelLaunch("vlmtrain::rope", {input.query, input.key, input.value, cos, sin},
               {output.query, output.key, output.value})(launchers().rope,
                                                         Rope{.element = get_element_type(input.query),
                                                              .rows = input.query.size(0),
                                                              .features = input.query.size(2),
                                                              .direction = static_cast<float>(direction),
                                                              .cos = cos.const_data_ptr<float>(),
                                                              .sin = sin.const_data_ptr<float>(),
                                                              .query = make_heads(output.query, input.query),
                                                              .key = make_heads(output.key, input.key),
                                                              .value = make_heads(output.value, input.value)});
}

}  // namespace vlmtrain::kernels

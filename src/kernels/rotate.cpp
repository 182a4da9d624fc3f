#include "vlmtrain/kernels/rotate.h"

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

Rotate::Heads places(const at::Tensor& to, const at::Tensor& from) {
  VLMTRAIN_CHECK(
      from.stride(2) == 1 && to.stride(2) == 1 && from.stride(1) == from.size(2) && to.stride(1) == to.size(2),
      "heads of a row lie one after the other");
  return {.from = from.const_data_ptr(),
          .to = to.mutable_data_ptr(),
          .from_stride = from.stride(0),
          .to_stride = to.stride(0),
          .heads = from.size(1)};
}

}  // namespace

void rotate(const Heads& to, const Heads& from, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  if (from.query.size(0) == 0) return;
  Launch("vlmtrain::rotate", {from.query, from.key, from.value, cos, sin}, {to.query, to.key, to.value})(
      launchers().rotate, Rotate{.element = element_of(from.query),
                                 .rows = from.query.size(0),
                                 .features = from.query.size(2),
                                 .direction = static_cast<float>(direction),
                                 .cos = cos.const_data_ptr<float>(),
                                 .sin = sin.const_data_ptr<float>(),
                                 .query = places(to.query, from.query),
                                 .key = places(to.key, from.key),
                                 .value = places(to.value, from.value)});
}

}  // namespace vlmtrain::kernels

#include "vlmtrain/nn/matmul.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <optional>
#include <string_view>

namespace vlmtrain::nn {

namespace {

/// Below this oneDNN's fixed cost of a call outweighs its speed.
constexpr int64_t kFewestRows = 16;

using Scalars = c10::List<std::optional<at::Scalar>>;
using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                   std::string_view, Scalars, std::optional<std::string_view>);

/// LibTorch's entry to oneDNN's inner product for plain tensors; it has no C++ function of its own.
at::Tensor onednn_inner_product(const at::Tensor& a, const at::Tensor& b) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<LinearPointwise>();
  return operation.call(a, b, /*bias=*/std::nullopt, /*attr=*/"none", Scalars(), /*algorithm=*/std::nullopt);
}

}  // namespace

at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_gradients;
  if (!a.is_cuda() && a.scalar_type() == at::kFloat && a.size(0) >= kFewestRows) return onednn_inner_product(a, b);
  return at::mm(a, b.t());
}

}  // namespace vlmtrain::nn

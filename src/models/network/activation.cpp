#include "models/network/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/threshold.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

Activation activation_of(std::string_view name, std::string_view key, const std::string& source) {
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "quick_gelu") return Activation::kQuickGelu;
  if (name == "relu") return Activation::kRelu;
  throw data_error("{}: {} {} is not supported; gelu, gelu_pytorch_tanh, quick_gelu and relu are", source, key, name);
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu: {
      // By way of SiLU, which keeps one tensor for the backward pass where a product with a sigmoid keeps two.
      constexpr double kSteepness = 1.702;
      return at::silu(x * kSteepness) * (1 / kSteepness);
    }
    case Activation::kRelu:
      return at::threshold(x, 0, 0);  // at::relu has no kernel for a plan of the host (meta)
  }
  throw InternalError("unknown activation");
}

}  // namespace vlmtrain::models

#include "models/network/activation.h"

#include <ATen/core/Tensor.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

Activation parse_activation(std::string_view name, std::string_view key, const std::string& source) {
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "quick_gelu") return Activation::kQuickGelu;
  if (name == "relu") return Activation::kRelu;
  throw data_error("{}: {} {} is not supported; supported are gelu, gelu_pytorch_tanh, quick_gelu and relu", source,
                   key, name);
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  return nn::apply_activation(activation, x).value();
}

}  // namespace vlmtrain::models

#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace vlmtrain::models {

/// An elementwise function between two Linears; the names are those of transformers' configs.
enum class Activation {
  kGelu,       ///< gelu: x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415)
  kGeluTanh,   ///< gelu_pytorch_tanh, gelu_new: its approximation by tanh
  kQuickGelu,  ///< quick_gelu: x sigmoid(1.702 x), OpenAI's CLIP
  kRelu,       ///< relu: max(x, 0)
};

/// The activation that `name` stands for under `key` of the file `source`. Throws UserError (kBadData) that lists the
/// known ones.
Activation activation_of(std::string_view name, std::string_view key, const std::string& source);

at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace vlmtrain::models

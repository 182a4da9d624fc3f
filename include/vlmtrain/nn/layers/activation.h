#pragma once

#include <cstdint>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::nn {

class LinearInput;  // linear.h

/// An elementwise activation function, named as in transformers' configs.
enum class Activation : uint8_t {
  kGelu,       ///< gelu: x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415)
  kGeluTanh,   ///< gelu_pytorch_tanh, gelu_new: the tanh approximation
  kQuickGelu,  ///< quick_gelu: x sigmoid(1.702 x), OpenAI's CLIP
  kRelu,       ///< relu: max(x, 0)
};

/// Returns the activation of x [rows, features] as input of Linears. Saves x, not the result.
LinearInput apply_activation(Activation activation, const at::Tensor& x);

/// Returns silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202) as input of Linears. x [rows, 2
/// · features] holds the columns of gate, then those of up. Saves x, not the result.
LinearInput swiglu(const at::Tensor& x);

/// Returns gelu_pytorch_tanh(gate) · up (GeGLU; ibid.) as input of Linears; x as in swiglu().
LinearInput geglu(const at::Tensor& x);

/// Returns the same for a separate gate and up, both [rows, features]. Saves both, not the result.
LinearInput geglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace vlmtrain::nn

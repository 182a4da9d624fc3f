#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/operand.h"

namespace vlmtrain::nn {

/// An elementwise function between two Linears; the names are those of transformers' configs.
enum class Activation : uint8_t {
  kGelu,       ///< gelu: x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415)
  kGeluTanh,   ///< gelu_pytorch_tanh, gelu_new: its approximation by tanh
  kQuickGelu,  ///< quick_gelu: x sigmoid(1.702 x), OpenAI's CLIP
  kRelu,       ///< relu: max(x, 0)
};

/// The activation of x, as Linears read it; x is kept, not its activation.
LinearInput apply_activation(Activation activation, const at::Tensor& x);

/// silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202) of the columns [gate, up] of x [rows, 2 · features]; x is
/// kept, not the product.
LinearInput swiglu(const at::Tensor& x);

/// The same with gelu_pytorch_tanh(gate) · up (GeGLU; ibid.).
LinearInput geglu(const at::Tensor& x);

}  // namespace vlmtrain::nn

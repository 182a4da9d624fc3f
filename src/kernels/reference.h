#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/dropout.h"
#include "vlmtrain/kernels/norm.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/kernels/rope.h"

namespace vlmtrain::kernels::reference {

// What kernels compute, with ATen's operations in fp64, on any device; rounded once to the type of the inputs.

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);
at::Tensor activate(const at::Tensor& x, ActivationFunction function);
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);
/// [rows, heads, features] rotated.
at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// Philox4x32-10 of the paper that src/kernels/cuda/philox.h names, on the host.
std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// What readers keep of x [rows, columns]: fp64 zeros and ones, [readers, rows, columns], drawn on the host.
at::Tensor dropout_masks(const at::Tensor& x, int64_t readers, const DropoutParams& params);
/// Of each reader, [readers, rows, columns].
at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability);
/// sum + Σ x · mask / (1 − probability).
at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability);

/// In fp32, rounded where ATen rounds: what the kernels give to the bit.
at::Tensor nf4_dequantize(const Nf4Blocks& blocks, at::ScalarType dtype);
at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype);
at::Tensor patchify(const image::BytePixels& pixels, image::ImageSize patch, at::ScalarType dtype);

/// fp32 [rows, 1], and the gradient of logits.
struct CrossEntropyAndGradient {
  at::Tensor cross_entropy, is_correct, logits_gradient;
};
CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors);

/// The fp32 master after a first step, from moments of zeros.
at::Tensor first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step);

/// [rows, heads, features] normed and rotated.
at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, Gain gain, double eps, const at::Tensor& cos,
                        const at::Tensor& sin);

struct QkNormRopeGradients {
  at::Tensor heads, weight;
};
QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          Gain gain, double eps, const at::Tensor& cos, const at::Tensor& sin);

at::Tensor norm(const at::Tensor& x, const Norm& norm, const at::Tensor& residual);
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& residual_gradient);

}  // namespace vlmtrain::kernels::reference

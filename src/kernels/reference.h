#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/elementwise.h"
#include "vlmtrain/kernels/norm.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/kernels/rope.h"

namespace vlmtrain::kernels::reference {

// Reference implementations of the kernels with ATen's operations, on any device. They compute in
// fp64 and round once to the inputs' type, unless noted otherwise.

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);
at::Tensor activate(const at::Tensor& x, ActivationFunction function);
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);
/// Rotates heads [rows, heads, features].
at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// Computes Philox4x32-10 (see src/kernels/cuda/primitives.h) on the CPU.
std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// Returns the masks of x [rows, columns], fp64 zeros and ones [readers, rows, columns], computed
/// on the CPU.
at::Tensor dropout_masks(const at::Tensor& x, int64_t readers, const DropoutParams& params);
/// Returns [readers, rows, columns].
at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability);
/// Returns sum + Σ x · mask / (1 − probability).
at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability);

/// Compute in fp32 with ATen's roundings; the kernels' results are bit-identical.
at::Tensor nf4_dequantize(const Nf4Blocks& blocks, at::ScalarType dtype);
at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype);
at::Tensor patchify(const image::BytePixels& pixels, image::ImageSize patch, at::ScalarType dtype);

/// Results per row, fp32 [rows, 1], and the gradient of the logits.
struct CrossEntropyAndGradient {
  at::Tensor cross_entropy, is_correct, logits_gradient;
};
CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors);

/// Returns the fp32 master weights after a first update, whose moments are zero before.
at::Tensor first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step);

/// Normalizes and rotates heads [rows, heads, features].
at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, Gain gain, double eps, const at::Tensor& cos,
                        const at::Tensor& sin);

/// Gradients of the heads and of the norm's weight.
struct QkNormRopeGradients {
  at::Tensor heads, weight;
};
QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          Gain gain, double eps, const at::Tensor& cos, const at::Tensor& sin);

at::Tensor norm(const at::Tensor& x, const Norm& norm, const at::Tensor& residual);
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& residual_gradient);

}  // namespace vlmtrain::kernels::reference

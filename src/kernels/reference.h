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

// Reference implementations of the kernels with ATen's operations, on any device, for tests and the
// self-test. They compute in fp64 and round once to the inputs' type, unless noted otherwise.
// Functions without a comment have the contract of the kernel of the same name.

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);
at::Tensor activate(const at::Tensor& x, ActivationFunction function);
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);
/// Rotates heads [rows, heads, features]; cos and sin fp32 [rows, 1, features / 2].
at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// Computes Philox4x32-10 (see src/kernels/cuda/primitives.h) on the CPU. `key` and `counter` have
/// their low word first.
std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// Returns the masks of x [rows, columns] on x's device, computed on the CPU: fp64 zeros and ones
/// [consumers, rows, columns].
at::Tensor make_dropout_masks(const at::Tensor& x, int64_t num_consumers, const DropoutParams& params);
/// Returns x · mask / (1 − probability), [consumers, rows, columns].
at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability);
/// Returns sum + Σ x · mask / (1 − probability) over the consumers.
at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability);

// These three compute in fp32 with ATen's roundings; the kernels' results are bit-identical.

at::Tensor nf4_dequantize(const Nf4Weights& blocks, at::ScalarType dtype);
at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype);
at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype);

/// The results for each row, fp32 [rows, 1], and the gradient of the logits [rows, vocabulary].
struct CrossEntropyAndGradient {
  at::Tensor cross_entropy, is_correct, logits_gradient;
};
CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors);

/// Returns the fp32 master weights after the first update, which starts from zero moments.
at::Tensor run_first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step);

/// Normalizes each of the heads [rows, heads, features] and rotates it; weight [features].
at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, NormGain gain, double eps,
                        const at::Tensor& cos, const at::Tensor& sin);

/// The gradients of the heads [rows, heads, features] and of the norm's weight [features].
struct QkNormRopeGradients {
  at::Tensor heads, weight;
};
QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          NormGain gain, double eps, const at::Tensor& cos, const at::Tensor& sin);

at::Tensor norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual);
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormParams& norm,
                         const at::Tensor& residual_gradient);

}  // namespace vlmtrain::kernels::reference

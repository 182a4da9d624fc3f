#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Independent dropout for several readers of the same rows, such as the adapters of one input. Each
/// element is dropped with `probability`, exact to 2⁻³²; the others are divided by 1 − probability. The
/// mask is a function of the stream's key, the row within the stream, the column and the reader, so it
/// is recomputed instead of stored.
struct DropoutParams {
  double probability = 0;                  ///< in [0, 1)
  std::span<const DropoutStream> streams;  ///< by ascending rows; the first begins with row 0
};

/// Writes each reader's copy of x after dropout to `dropped`; rounds once. One launch handles up to
/// kMaxDropoutStreams streams.
///
/// x: dense `[rows, columns]`, fp32, bf16 or fp16, with less than 2³² columns. dropped: dense
/// `[readers, rows, columns]`, or `[rows, columns]` for one reader. REQUIRES: has(kDropout, x).
void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutParams& params);

/// Adds x after dropout, summed over the readers, to `sum`; rounds once. This is the backward pass: x
/// are the gradients of the readers' inputs, and `sum` that of the common input.
///
/// sum: dense `[rows, columns]`. x: `[readers, rows, columns]`, or `[rows, columns]`.
void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params);

}  // namespace vlmtrain::kernels

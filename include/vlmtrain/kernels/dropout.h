#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// What readers of rows drop of them, independently of each other: each element with `probability`, in [0, 1), exact to
/// 2⁻³², and all else is divided by 1 − probability. Which ones is a function of the stream's key, the row within the
/// stream, the column and the reader's number. Nothing is kept of it: it is the same whenever it is drawn.
struct DropoutParams {
  double probability = 0;
  std::span<const DropoutStream> streams;  ///< by ascending rows; the first one begins with row 0
};

/// Writes into `dropped` what each reader has of x, dense [rows, columns] in fp32, bf16 or fp16: dense [readers, rows,
/// columns], or [rows, columns] of one reader. Rounds once. 240 streams take a launch. REQUIRES: has(kDropout, x), less
/// than 2³² columns.
void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutParams& params);

/// Adds to `sum`, dense [rows, columns], what is dropped so of x [readers, rows, columns], or [rows, columns], over the
/// readers: the gradient of what they read is x, and of their common input the sum. Rounds once.
void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params);

}  // namespace vlmtrain::kernels

#include "nn/mixers/triangular_inverse.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>

#include "vlmtrain/nn/mixers/chunk_layout.h"

namespace vlmtrain::nn {

namespace {

/// Returns the blocks [size, size) × [0, size) of the diagonal blocks of 2 · `size` rows: [n ·
/// kChunkRows / (2 · size), size, size].
at::Tensor copy_lower_left_blocks(const at::Tensor& matrices, int64_t size) {
  const int64_t num_blocks = kChunkRows / (2 * size);
  return matrices.view({-1, num_blocks, 2, size, num_blocks, 2, size})
      .select(5, 0)
      .select(2, 1)
      .diagonal(0, 1, 3)  // [n, size, size, blocks]
      .permute({0, 3, 1, 2})
      .reshape({-1, size, size});
}

/// Computes the inverses on the CPU by forward substitution: row i is that of the identity minus
/// Σ_(j < i) L_ij · row j.
template <class Number>
void substitute(const at::Tensor& strictly_lower, const at::Tensor& inverse) {
  constexpr int64_t kMatrixSize = kChunkRows * kChunkRows;
  const at::Tensor dense = strictly_lower.contiguous();
  const auto* const lower = dense.const_data_ptr<Number>();
  auto* const result = inverse.mutable_data_ptr<Number>();
  at::parallel_for(0, inverse.size(0), /*grain_size=*/4, [&](int64_t begin, int64_t end) {
    for (int64_t matrix = begin; matrix < end; ++matrix) {
      const Number* const l = lower + matrix * kMatrixSize;
      Number* const x = result + matrix * kMatrixSize;
      std::fill(x, x + kMatrixSize, Number{0});
      for (int64_t i = 0; i < kChunkRows; ++i) {
        Number* const row = x + i * kChunkRows;
        row[i] = 1;
        for (int64_t j = 0; j < i; ++j) {
          const Number factor = l[i * kChunkRows + j];
          const Number* const earlier_row = x + j * kChunkRows;
          for (int64_t column = 0; column <= j; ++column) row[column] -= factor * earlier_row[column];
        }
      }
    }
  });
}

}  // namespace

at::Tensor invert_unit_lower_by_blocks(const at::Tensor& strictly_lower) {
  const at::NoGradGuard no_gradients;
  const int64_t num_matrices = strictly_lower.size(0);
  at::Tensor inverse = at::ones({num_matrices * kChunkRows, 1, 1}, strictly_lower.options());
  for (int64_t size = 1; size < kChunkRows; size *= 2) {
    const at::Tensor halves = inverse.view({-1, 2, size, size});
    const at::Tensor upper_left = halves.select(1, 0), lower_right = halves.select(1, 1);
    at::Tensor lower_left = copy_lower_left_blocks(strictly_lower, size);
    if (size > 1) lower_left = at::bmm(lower_right, at::bmm(lower_left, upper_left));
    const at::Tensor merged = at::zeros({halves.size(0), 2 * size, 2 * size}, strictly_lower.options());
    merged.narrow(1, 0, size).narrow(2, 0, size).copy_(upper_left);
    merged.narrow(1, size, size).narrow(2, size, size).copy_(lower_right);
    merged.narrow(1, size, size).narrow(2, 0, size).copy_(lower_left.neg_());
    inverse = merged;
  }
  return inverse;
}

at::Tensor invert_unit_lower(const at::Tensor& strictly_lower) {
  const at::NoGradGuard no_gradients;
  if (strictly_lower.is_cuda()) return invert_unit_lower_by_blocks(strictly_lower);
  at::Tensor inverse = at::empty_like(strictly_lower);
  if (inverse.is_meta()) return inverse;  // of a dry run on the host
  if (inverse.scalar_type() == at::kDouble) {
    substitute<double>(strictly_lower, inverse);
  } else {
    substitute<float>(strictly_lower, inverse);
  }
  return inverse;
}

}  // namespace vlmtrain::nn

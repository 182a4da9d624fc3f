#include "engine/optimizer/newton_schulz.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace vlmtrain::engine {

namespace {

// Coefficients of the polynomial a x + b x³ + c x⁵ of Jordan et al., chosen for a large slope at 0.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
/// Smallest norm that divides a matrix, as in torch.optim.Muon.
constexpr double kMinNorm = 1e-7;

/// Returns the beginning of a flat buffer as a matrix.
at::Tensor view_as_matrix(const at::Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.narrow(0, 0, rows * columns).view({rows, columns});
}

}  // namespace

NewtonSchulzBuffers::NewtonSchulzBuffers(int64_t max_elements, int64_t max_rank, const at::TensorOptions& options) {
  const auto bf16_options = options.dtype(at::kBFloat16);
  for (auto& matrix : matrices) matrix = at::empty({max_elements}, bf16_options);
  for (auto& gram : grams) gram = at::empty({max_rank * max_rank}, bf16_options);
  norm = at::empty({}, bf16_options);
}

at::Tensor orthogonalize(const at::Tensor& matrix, int64_t num_steps, const NewtonSchulzBuffers& buffers) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const int64_t rank = std::min(rows, columns), length = std::max(rows, columns);
  const bool is_tall = rows > columns;
  const at::Tensor rounded = view_as_matrix(buffers.matrices[0], rows, columns).copy_(matrix);
  // x is [rank, length]: the Gram matrix x xᵀ is the smaller one.
  at::Tensor x = is_tall ? rounded.t() : rounded;
  at::Tensor norm = buffers.norm, gram = view_as_matrix(buffers.grams[0], rank, rank),
             polynomial = view_as_matrix(buffers.grams[1], rank, rank);
  x.div_(at::linalg_vector_norm_out(norm, x, 2).clamp_min_(kMinNorm));
  for (int64_t step = 0; step < num_steps; ++step) {
    at::Tensor next = view_as_matrix(buffers.matrices[(step + 1) % 2], rank, length);
    at::mm_out(gram, x, x.t());
    at::addmm_out(polynomial, gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    at::addmm_out(next, x, polynomial, x, /*beta=*/kA);
    x = next;
  }
  return is_tall ? x.t() : x;
}

}  // namespace vlmtrain::engine

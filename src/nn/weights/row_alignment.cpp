#include "vlmtrain/nn/weights/row_alignment.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

#include "nn/round_up.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

constexpr const char* kAlignmentVariable = "VLMTRAIN_ROW_ALIGNMENT";
constexpr int64_t kCudaAlignmentBytes = 16;
/// Largest value of the variable. Much larger ones exceed memory and the grids of kernels.
constexpr uint32_t kMaxAlignmentBytes = 4096;

/// Returns the value of the variable; empty if it is not set.
std::optional<int64_t> read_alignment_variable() {
  const char* const text = std::getenv(kAlignmentVariable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  uint32_t bytes = 0;
  const char* const end = text + std::strlen(text);
  if (const auto [rest, error] = std::from_chars(text, end, bytes);
      error != std::errc() || rest != end || !std::has_single_bit(bytes) || bytes > kMaxAlignmentBytes) {
    throw usage_error("{}: {} is not a power of two from 1 to {}; use 1 to align no rows, or 16", kAlignmentVariable,
                      text, kMaxAlignmentBytes);
  }
  return bytes;
}

}  // namespace

int64_t align_width(int64_t width, const at::TensorOptions& options) {
  static const std::optional<int64_t> alignment_variable = read_alignment_variable();
  const int64_t bytes = alignment_variable.value_or(options.device().is_cuda() ? kCudaAlignmentBytes : 1);
  const auto element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  const int64_t elements = bytes <= element_bytes ? 1 : bytes / element_bytes;
  return round_up(width, elements);
}

at::Tensor allocate_aligned_rows(int64_t rows, int64_t width, const at::TensorOptions& options) {
  return at::empty({rows, align_width(width, options)}, options).narrow(1, 0, width);
}

at::Tensor pad_columns(const at::Tensor& matrix, int64_t columns) {
  return matrix.size(1) == columns ? matrix : at::constant_pad_nd(matrix, {0, columns - matrix.size(1)});
}

at::Tensor pad_to_aligned_width(const at::Tensor& matrix) {
  return pad_columns(matrix, align_width(matrix.size(1), matrix.options()));
}

}  // namespace vlmtrain::nn

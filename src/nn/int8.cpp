#include "nn/int8.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

constexpr double kMaxCode = 127;
/// 1 / 127 with the digits that bitsandbytes multiplies by (functional.py, int8_vectorwise_dequant).
constexpr double kDequantizeScale = 7.874015718698502e-3;
/// Values that are treated at a time, in whole rows: half of a weight of a 7B model's MLP.
constexpr int64_t kInt8ChunkElements = 22'544'384;

/// The rows of a matrix piece by piece: the first, and how many.
std::vector<std::pair<int64_t, int64_t>> split_rows(at::IntArrayRef sizes) {
  const int64_t max_rows = std::max<int64_t>(1, kInt8ChunkElements / sizes[1]);
  std::vector<std::pair<int64_t, int64_t>> chunks;
  for (int64_t first = 0; first < sizes[0]; first += max_rows) {
    chunks.emplace_back(first, std::min(max_rows, sizes[0] - first));
  }
  return chunks;
}

}  // namespace

Int8Weight::Int8Weight(at::IntArrayRef sizes, const at::TensorOptions& options)
    : QuantizedWeight(sizes),
      dtype_(options.dtype().toScalarType()),
      values_(at::empty(sizes, options.dtype(at::kChar))),
      row_absmax_(at::empty({sizes[0]}, options.dtype(at::kFloat))) {}

void Int8Weight::quantize(const at::Tensor& weight) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU);
  for (const auto& [first, count] : split_rows(sizes())) {
    const at::Tensor rows = values.narrow(0, first, count).to(at::kHalf).to(at::kFloat);
    const at::Tensor absmax = at::amax(rows.abs(), {1});
    // Two roundings, as in Python's 127.0 / absmax. A row of zeros is not divided by its zero.
    const at::Tensor scale = absmax.masked_fill(absmax == 0, 1).reciprocal_().mul_(kMaxCode);
    values_.narrow(0, first, count).copy_((rows * scale.unsqueeze(1)).round_());
    row_absmax_.narrow(0, first, count).copy_(absmax);
  }
}

at::Tensor Int8Weight::dequantize() const {
  const at::NoGradGuard no_gradients;
  const at::Tensor step = c10::scalar_to_tensor(kDequantizeScale);
  at::Tensor result = at::empty(sizes(), values_.options().dtype(dtype_));
  if (kernels::has(kernels::Kernel::kInt8, values_) && dtype_ != at::kDouble) {
    kernels::int8_dequantize(result, values_, row_absmax_, kDequantizeScale);
    return result;
  }
  for (const auto& [first, count] : split_rows(sizes())) {
    const at::Tensor scaled = values_.narrow(0, first, count) * row_absmax_.narrow(0, first, count).unsqueeze(1);
    at::Tensor chunk = result.narrow(0, first, count);
    at::mul_out(chunk, scaled, step);
  }
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> Int8Weight::state() const {
  return {{"weight", values_}, {"SCB", row_absmax_}};
}

std::vector<at::Tensor> Int8Weight::tensors() const {
  return {values_, row_absmax_};
}

}  // namespace vlmtrain::nn

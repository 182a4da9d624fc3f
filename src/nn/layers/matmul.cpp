#include "vlmtrain/nn/layers/matmul.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <string_view>

#include "nn/adjacent_tensors.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::nn {

namespace {

using ScalarList = c10::List<std::optional<at::Scalar>>;
/// The signature of mkldnn::_linear_pointwise.
using LinearPointwiseSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                            std::string_view, ScalarList, std::optional<std::string_view>);

/// The layout of the operands: whether each is a transposed view.
struct TransposedOperands {
  bool is_a_transposed = false;
  bool is_b_transposed = false;
};

/// Rows, columns and depth of the autotuned product. ATen's own 16-bit loops reach 1 GFLOP/s, so a
/// round takes 4 ms; larger sizes would delay the first step.
constexpr int64_t kAutotuneMatrixSize = 128;
/// Enough rounds for at least one that other processes do not disturb.
constexpr int kNumAutotuneRounds = 8;
/// The minimum speedup of fp32 over LibTorch's 16-bit product. Processors without 16-bit
/// instructions are far above it and others are below, so all processes on a machine choose the
/// same backend.
constexpr double kMinSpeedup = 3;
/// ATen's product is no longer timed if it is this many times slower than fp32 in all of the first
/// kMinAutotuneRounds rounds. A single slow round may be caused by other processes. Not tuned.
constexpr double kMaxSlowdown = 8;
constexpr int kMinAutotuneRounds = 4;

at::Tensor multiply_fp32(const at::Tensor& a, const at::Tensor& b) {
  return onednn_matmul(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

at::Tensor make_autotune_operand(bool is_transposed, at::ScalarType dtype) {
  const at::Tensor operand =
      at::full({kAutotuneMatrixSize, kAutotuneMatrixSize}, 0.5, at::TensorOptions(at::kCPU).dtype(dtype));
  return is_transposed ? operand.t() : operand;
}

template <typename Product>
void update_shortest_time(const Product& run, double& shortest_seconds) {
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(run());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  shortest_seconds = std::min(shortest_seconds, elapsed.count());
}

/// Returns the faster 16-bit backend. Compares the shortest of several times and alternates between
/// the backends, because other processes slow down both. The first call of each is not timed:
/// oneDNN compiles its kernel then, which takes a hundred times as long.
MatmulBackend autotune_matmul(TransposedOperands transposed, at::ScalarType dtype) {
  const at::NoGradGuard no_gradients;
  const memory::ScopedDisableTracking disable_tracking;
  const at::DisableRecordFunctionGuard no_record_functions;
  const at::Tensor a = make_autotune_operand(transposed.is_a_transposed, dtype),
                   b = make_autotune_operand(transposed.is_b_transposed, dtype);
  double native_seconds = std::numeric_limits<double>::infinity(), fp32_seconds = native_seconds;
  const auto compute_native_product = [&] { return at::mm(a, b.t()); };
  const auto compute_fp32_product = [&] { return multiply_fp32(a, b); };
  static_cast<void>(compute_native_product());
  static_cast<void>(compute_fp32_product());
  for (int round = 0; round < kNumAutotuneRounds; ++round) {
    if (round < kMinAutotuneRounds || native_seconds < kMaxSlowdown * fp32_seconds)
      update_shortest_time(compute_native_product, native_seconds);
    update_shortest_time(compute_fp32_product, fp32_seconds);
  }
  return fp32_seconds * kMinSpeedup < native_seconds ? MatmulBackend::kFp32 : MatmulBackend::kAten;
}

/// Returns the autotuned backend, determined once per process.
template <at::ScalarType dtype>
MatmulBackend get_tuned_backend(TransposedOperands transposed) {
  static const std::array<MatmulBackend, 4> backends{
      autotune_matmul({false, false}, dtype), autotune_matmul({false, true}, dtype),
      autotune_matmul({true, false}, dtype), autotune_matmul({true, true}, dtype)};
  return backends[(transposed.is_a_transposed ? 2U : 0U) + (transposed.is_b_transposed ? 1U : 0U)];
}

bool is_transposed(const at::Tensor& x) {
  return !x.is_contiguous() && x.t().is_contiguous();
}

/// With fewer rows of the first operand, at::mm is used: oneDNN's fixed cost per call, or the fp32
/// copy of a weight, outweighs the speedup. Not tuned.
constexpr int64_t kMinOneDnnRows = 16;

/// Returns the sink of a parameter; null if it has none.
GradientSink* find_sink(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

/// Adds a · bᵀ to `sum` with cuBLAS, or writes it if `has_sum` is false. 16-bit factors have an
/// fp32 result.
void add_product_cublas(at::Tensor sum, bool has_sum, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor factor = b.t();
  if (a.scalar_type() == at::kFloat) {
    has_sum ? at::addmm_out(sum, sum, a, factor) : at::mm_out(sum, a, factor);
  } else {
    has_sum ? at::addmm_out(sum, sum, a, factor, at::kFloat) : at::mm_out(sum, a, factor, at::kFloat);
  }
}

}  // namespace

MatmulBackend select_matmul_backend(const at::Tensor& a, const at::Tensor& b) {
  const TransposedOperands transposed{is_transposed(a), is_transposed(b)};
  switch (a.scalar_type()) {
    case at::kFloat:
      return MatmulBackend::kOneDnn;
    case at::kBFloat16:
      return get_tuned_backend<at::kBFloat16>(transposed);
    case at::kHalf:
      return get_tuned_backend<at::kHalf>(transposed);
    default:
      return MatmulBackend::kAten;
  }
}

at::Tensor onednn_matmul(const at::Tensor& a, const at::Tensor& b) {
  static const auto linear_pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<LinearPointwiseSignature>();
  return linear_pointwise.call(a, b, /*bias=*/std::nullopt, /*attr=*/"none", ScalarList(), /*algorithm=*/std::nullopt);
}

at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_gradients;
  if (a.is_cuda() || a.size(0) < kMinOneDnnRows) return at::mm(a, b.t());
  switch (select_matmul_backend(a, b)) {
    case MatmulBackend::kOneDnn:
      return onednn_matmul(a, b);
    case MatmulBackend::kFp32:
      return matmul_transposed(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
    case MatmulBackend::kAten:
      break;
  }
  return at::mm(a, b.t());
}

at::Tensor make_dense(const at::Tensor& matrix) {
  return matrix.is_cuda() || matrix.is_non_overlapping_and_dense() ? matrix : matrix.contiguous();
}

void matmul_transposed_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (out.is_cuda()) {
    at::addmm_out(out, out, a, b.t(), /*beta=*/0, /*alpha=*/scale);
    return;
  }
  out.copy_(matmul_transposed(make_dense(a), make_dense(b)));
  if (scale != 1) out.mul_(scale);
}

void addmm_in_place(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  if (y.is_cuda() || y.scalar_type() == at::kFloat) {
    y.addmm_(a, b);
  } else {
    y.add_(matmul_transposed(make_dense(a), make_dense(b.t())));
  }
}

bool add_product_to_gradient_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b) {
  std::vector<GradientSink*> sinks;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& parameter : parameters) {
    GradientSink* const sink = find_sink(parameter);
    if (sink == nullptr) return false;
    sinks.push_back(sink);
    sums.push_back(sink->sum());
    if (!sums.back().defined() || sink->has_sum() != sinks.front()->has_sum()) return false;
  }
  const at::Tensor sum = view_adjacent_tensors(sums);
  if (!sum.defined()) return false;
  const at::NoGradGuard no_gradients;
  const bool has_sum = sinks.front()->has_sum();
  if (sum.is_cuda()) {
    add_product_cublas(sum, has_sum, a, b);
  } else {
    const at::Tensor product = matmul_transposed(a, b);
    has_sum ? sum.add_(product) : sum.copy_(product);
  }
  for (GradientSink* const sink : sinks) sink->set_has_sum();
  return true;
}

}  // namespace vlmtrain::nn

#include "vlmtrain/nn/layers/matmul.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string_view>

#include "nn/adjacent_tensors.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

namespace {

using ScalarList = c10::List<std::optional<at::Scalar>>;
/// The signature of mkldnn::_linear_pointwise.
using LinearPointwiseSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                            std::string_view, ScalarList, std::optional<std::string_view>);

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

MatmulBackend select_matmul_backend(at::ScalarType dtype, const memory::OneDnnIsa& isa) {
  switch (dtype) {
    case at::kFloat:
      return MatmulBackend::kOneDnn;
    case at::kBFloat16:
      return isa.bf16_matmul == "emulated" ? MatmulBackend::kFp32 : MatmulBackend::kAten;
    case at::kHalf:
      return isa.has_fp16_matmul ? MatmulBackend::kAten : MatmulBackend::kFp32;
    default:
      return MatmulBackend::kAten;
  }
}

MatmulBackend select_matmul_backend(at::ScalarType dtype) {
  static const memory::OneDnnIsa isa = memory::get_cpu_kernel_info(memory::read_cpu_info()).onednn_isa;
  return select_matmul_backend(dtype, isa);
}

at::Tensor onednn_matmul(const at::Tensor& a, const at::Tensor& b) {
  static const auto linear_pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<LinearPointwiseSignature>();
  return linear_pointwise.call(a, b, /*bias=*/std::nullopt, /*attr=*/"none", ScalarList(), /*algorithm=*/std::nullopt);
}

at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_gradients;
  if (a.is_cuda() || a.size(0) < kMinOneDnnRows) return at::mm(a, b.t());
  switch (select_matmul_backend(a.scalar_type())) {
    case MatmulBackend::kOneDnn:
      return onednn_matmul(make_dense(a), make_dense(b));
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
  const bool has_aligned_rows = align_width(sum.size(1), sum.options()) == sum.size(1);
  if (sum.is_cuda() && !has_aligned_rows) {
    const at::Tensor product = allocate_aligned_rows(sum.size(0), sum.size(1), sum.options());
    add_product_cublas(product, /*has_sum=*/false, a, b);
    has_sum ? sum.add_(product) : sum.copy_(product);
  } else if (sum.is_cuda()) {
    add_product_cublas(sum, has_sum, a, b);
  } else {
    const at::Tensor product = matmul_transposed(a, b);
    has_sum ? sum.add_(product) : sum.copy_(product);
  }
  for (GradientSink* const sink : sinks) sink->set_has_sum();
  return true;
}

}  // namespace vlmtrain::nn

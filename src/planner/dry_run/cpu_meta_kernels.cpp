#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "planner/dry_run/cpu_dry_run.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/nn/layers/matmul.h"

namespace vlmtrain::planner {

namespace {

using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor make_empty_contiguous(const at::Tensor& x) {
  return at::empty(x.sizes(), x.options());
}

// The dispatcher accepts parameters of its own types by value only.
// NOLINTBEGIN(performance-unnecessary-value-param)
/// mkldnn::_linear_pointwise. a: [rows, in_features], b: [out_features, in_features].
at::Tensor linear_pointwise(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& /*bias*/,
                            std::string_view /*attr*/, c10::List<std::optional<at::Scalar>> /*scalars*/,
                            std::optional<std::string_view> /*algorithm*/) {
  const at::Tensor rows = a.contiguous();
  at::Tensor result = at::empty({a.size(0), b.size(0)}, a.options());
  const at::Tensor packed_weight =
      get_num_packed_operands(a.scalar_type()) > 0 ? make_empty_contiguous(b) : at::Tensor();
  return result;
}
// NOLINTEND(performance-unnecessary-value-param)

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = index.numel();
  return at::empty(sizes, x.options());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return at::empty(sizes, self.options());
}

// The out variants below are called with outputs of the right size.
at::Tensor& index_select_out(const at::Tensor& /*x*/, int64_t /*dim*/, const at::Tensor& /*index*/,
                             at::Tensor& result) {
  return result;
}

at::Tensor& where_out(const at::Tensor& /*condition*/, const at::Tensor& /*yes*/, const at::Tensor& /*no*/,
                      at::Tensor& result) {
  return result;
}

at::Tensor& bucketize_out(const at::Tensor& /*x*/, const at::Tensor& /*bounds*/, bool /*int32*/, bool /*right*/,
                          at::Tensor& result) {
  return result;
}

/// The out variant of elementwise operations with one operand.
at::Tensor& elementwise_out(const at::Tensor& x, at::Tensor& result) {
  result.resize_(x.sizes());
  return result;
}

/// Returns the numbers of rows and features of an input that is normalized over its last
/// dimensions.
std::pair<int64_t, int64_t> count_rows_and_features(const at::Tensor& x, size_t normalized_dimensions) {
  int64_t features = 1;
  for (const int64_t size : x.sizes().slice(static_cast<size_t>(x.dim()) - normalized_dimensions)) features *= size;
  return {x.numel() / std::max<int64_t>(features, 1), features};
}

TensorTriple native_layer_norm(const at::Tensor& x, c10::SymIntArrayRef normalized,
                               const std::optional<at::Tensor>& /*weight*/, const std::optional<at::Tensor>& /*bias*/,
                               double /*eps*/) {
  const auto [rows, features] = count_rows_and_features(x, normalized.size());
  const auto fp32 = x.options().dtype(at::kFloat);
  return {make_empty_contiguous(x), at::empty({rows, 1}, fp32), at::empty({rows, 1}, fp32)};
}

TensorTriple native_layer_norm_backward(const at::Tensor& /*gradient*/, const at::Tensor& x,
                                        c10::SymIntArrayRef normalized, const at::Tensor& /*mean*/,
                                        const at::Tensor& /*rstd*/, const std::optional<at::Tensor>& weight,
                                        const std::optional<at::Tensor>& bias, std::array<bool, 3> output_mask) {
  const auto [rows, features] = count_rows_and_features(x, normalized.size());
  TensorTriple result;
  if (output_mask[0]) std::get<0>(result) = make_empty_contiguous(x);
  if (output_mask[1]) std::get<1>(result) = make_empty_contiguous(*weight);
  if (output_mask[2]) std::get<2>(result) = make_empty_contiguous(*bias);
  // Each thread has partial sums of dweight and dbias.
  const at::Tensor partial_sums = at::empty({2, at::get_num_threads(), features}, x.options().dtype(at::kFloat));
  return result;
}

// NOLINTBEGIN(performance-unnecessary-value-param)
at::Tensor embedding_dense_backward(const at::Tensor& dy, const at::Tensor& /*indices*/, c10::SymInt rows,
                                    c10::SymInt /*padding*/, bool /*scale_by_frequency*/) {
  return at::empty({rows.expect_int(), dy.size(-1)}, dy.options());
}
// NOLINTEND(performance-unnecessary-value-param)

/// x: [images, channels, height, width], weight: [out_channels, channels, height, width].
// NOLINTBEGIN(performance-unnecessary-value-param)
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& /*bias*/,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool /*transposed*/, c10::SymIntArrayRef /*output_padding*/, c10::SymInt /*groups*/) {
  std::vector<int64_t> sizes{x.size(0), weight.size(0)};
  for (size_t axis = 0; axis < stride.size(); ++axis) {
    const auto dim = static_cast<int64_t>(axis) + 2;
    const int64_t kernel_extent = dilation[axis].expect_int() * (weight.size(dim) - 1) + 1;
    sizes.push_back((x.size(dim) + 2 * padding[axis].expect_int() - kernel_extent) / stride[axis].expect_int() + 1);
  }
  at::Tensor result = at::empty(sizes, x.options());
  // oneDNN's kernels copy all operands into blocked layouts.
  const at::Tensor blocked_x = make_empty_contiguous(x), blocked_weight = make_empty_contiguous(weight),
                   blocked_result = make_empty_contiguous(result);
  return result;
}

TensorTriple convolution_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                  c10::SymIntArrayRef /*stride*/, c10::SymIntArrayRef /*padding*/,
                                  c10::SymIntArrayRef /*dilation*/, bool /*transposed*/,
                                  c10::SymIntArrayRef /*output_padding*/, c10::SymInt /*groups*/,
                                  std::array<bool, 3> output_mask) {
  TensorTriple result;
  const at::Tensor blocked_dy = make_empty_contiguous(dy), blocked_weight = make_empty_contiguous(weight);
  if (output_mask[0]) {
    const at::Tensor blocked_result = make_empty_contiguous(x);
    std::get<0>(result) = make_empty_contiguous(x);
  }
  if (output_mask[1]) std::get<1>(result) = make_empty_contiguous(weight);
  if (output_mask[2]) std::get<2>(result) = at::empty({weight.size(0)}, weight.options());
  const at::Tensor blocked_x = output_mask[1] ? make_empty_contiguous(x) : at::Tensor();
  return result;
}
// NOLINTEND(performance-unnecessary-value-param)

std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& x) {
  return {make_empty_contiguous(x), make_empty_contiguous(x)};
}

at::Tensor native_dropout_backward(const at::Tensor& dy, const at::Tensor& /*mask*/, double /*scale*/) {
  // dy · mask · scale: the mask is converted to dy's type, and each product is a tensor.
  at::Tensor product = make_empty_contiguous(dy);
  { const at::Tensor converted_mask = make_empty_contiguous(dy); }
  return make_empty_contiguous(dy);
}

/// The numbers of queries and keys that a thread of the flash attention kernels processes at a time
/// (LibTorch's FlashAttentionKernel.cpp).
struct FlashBlockSize {
  int64_t queries, keys;
};

FlashBlockSize choose_flash_block_size(const at::Tensor& query, const at::Tensor& key) {
  // Sizes and thresholds are those of the same source.
  constexpr int64_t kMaxBlockKeys = 512;
  const int64_t rows = query.size(2);
  const int64_t max_block_queries = rows >= 768 ? 256 : rows >= 192 ? 64 : 32;
  return {.queries = std::min(max_block_queries, rows), .keys = std::min(kMaxBlockKeys, key.size(2))};
}

/// Returns the buffers of all threads: [threads, elements], fp32. Each thread has
/// `num_score_blocks` blocks of scores and `accumulator_elements` for running sums. 16-bit inputs
/// also need each block of scores in 16 bits.
at::Tensor allocate_flash_buffers(const at::Tensor& query, const FlashBlockSize& block, int64_t num_score_blocks,
                                  int64_t accumulator_elements) {
  const int64_t block_elements = block.queries * block.keys;
  const int64_t reduced_precision_elements = query.element_size() < 4 ? block_elements / 2 : 0;
  return at::empty(
      {at::get_num_threads(), num_score_blocks * (block_elements + reduced_precision_elements) + accumulator_elements},
      query.options().dtype(at::kFloat));
}

/// query, key, value: [batch, heads, rows, head_dim]. The outputs are stored as [batch, rows,
/// heads, …].
std::tuple<at::Tensor, at::Tensor> flash_attention(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& /*value*/, double /*dropout*/, bool /*causal*/,
                                                   const std::optional<at::Tensor>& /*mask*/,
                                                   std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2);
  const at::Tensor output = at::empty({batch, rows, heads, query.size(3)}, query.options());
  const at::Tensor logsumexp = at::empty({batch, rows, heads}, query.options().dtype(at::kFloat));
  const FlashBlockSize block = choose_flash_block_size(query, key);
  const at::Tensor buffers =
      allocate_flash_buffers(query, block, /*num_score_blocks=*/1, block.queries * (query.size(3) + 2));
  return {output.transpose(1, 2), logsumexp.transpose(1, 2)};
}

TensorTriple flash_attention_backward(const at::Tensor& /*gradient*/, const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, const at::Tensor& /*output*/,
                                      const at::Tensor& /*logsumexp*/, double /*dropout*/, bool /*causal*/,
                                      const std::optional<at::Tensor>& /*mask*/, std::optional<double> /*scale*/) {
  const auto make_empty_sequence_major = [](const at::Tensor& x) {
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  };
  TensorTriple result{make_empty_sequence_major(query), make_empty_sequence_major(key),
                      make_empty_sequence_major(value)};
  const at::Tensor buffers = allocate_flash_buffers(query, choose_flash_block_size(query, key), /*num_score_blocks=*/2,
                                                    /*accumulator_elements=*/0);
  return result;
}

/// Works in place without temporaries.
void fused_adamw(at::TensorList /*weights*/, at::TensorList /*gradients*/, at::TensorList /*first_moments*/,
                 at::TensorList /*second_moments*/, at::TensorList /*largest*/, at::TensorList /*steps*/, double /*lr*/,
                 double /*beta1*/, double /*beta2*/, double /*weight_decay*/, double /*eps*/, bool /*amsgrad*/,
                 bool /*maximize*/, const std::optional<at::Tensor>& /*grad_scale*/,
                 const std::optional<at::Tensor>& /*found_inf*/) {}

/// Registers meta kernels for the operations of one namespace. Existing kernels are not replaced.
class MetaKernelRegistry {
 public:
  explicit MetaKernelRegistry(const char* op_namespace)
      : op_namespace_(op_namespace),
        library_(torch::Library::IMPL, op_namespace, c10::DispatchKey::Meta, __FILE__, __LINE__) {}

  template <class Function>
  void add(const std::string& name, Function* function, const std::string& overload = "") {
    const auto op_handle = c10::Dispatcher::singleton().findSchema({op_namespace_ + "::" + name, overload});
    if (!op_handle || op_handle->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
    library_.impl((overload.empty() ? name : name + "." + overload).c_str(), function);
  }

 private:
  std::string op_namespace_;
  torch::Library library_;
};

/// Returns the number of matrices that a matmul of square matrices allocates, except for its
/// result.
int64_t count_gemm_packed_operands(at::ScalarType dtype) {
  // Large enough for the library to use its packed kernels.
  constexpr int64_t kMatrixSize = 64;
  const at::Tensor matrix = at::ones({kMatrixSize, kMatrixSize}, dtype);
  memory::AllocationFaultInjector allocation_counter;  // only counts; no allocation is made to fail
  const at::Tensor product = nn::matmul_transposed(matrix, matrix);
  return allocation_counter.peak_bytes() / static_cast<int64_t>(product.nbytes()) - 1;
}

}  // namespace

int64_t get_num_packed_operands(at::ScalarType dtype) {
  static const std::map<at::ScalarType, int64_t> counts{{at::kFloat, count_gemm_packed_operands(at::kFloat)},
                                                        {at::kBFloat16, count_gemm_packed_operands(at::kBFloat16)}};
  const auto entry = counts.find(dtype);
  return entry == counts.end() ? 0 : entry->second;
}

void register_cpu_meta_kernels() {
  static const auto* const kernel_registries = [] {
    auto* const kernels = new std::array<MetaKernelRegistry, 2>{
        MetaKernelRegistry("aten"),
        MetaKernelRegistry("mkldnn")};  // never freed: the dispatcher outlives static objects
    MetaKernelRegistry& aten_registry = kernels->front();
    aten_registry.add("index_select", index_select);
    aten_registry.add("index_select", index_select_out, "out");
    aten_registry.add("where", where, "self");
    aten_registry.add("where", where_out, "self_out");
    aten_registry.add("bucketize", bucketize_out, "Tensor_out");
    aten_registry.add("abs", elementwise_out, "out");
    aten_registry.add("logical_not", elementwise_out, "out");
    aten_registry.add("native_layer_norm", native_layer_norm);
    aten_registry.add("native_layer_norm_backward", native_layer_norm_backward);
    aten_registry.add("embedding_dense_backward", embedding_dense_backward);
    aten_registry.add("native_dropout_backward", native_dropout_backward);
    aten_registry.add("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
    aten_registry.add("_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward);
    aten_registry.add("_fused_adamw_", fused_adamw);
    aten_registry.add("log_sigmoid_forward", log_sigmoid_forward);
    aten_registry.add("convolution_overrideable", convolution);
    aten_registry.add("convolution_backward_overrideable", convolution_backward);
    kernels->back().add("_linear_pointwise", linear_pointwise);
    return kernels;
  }();
  static_cast<void>(kernel_registries);
}

}  // namespace vlmtrain::planner

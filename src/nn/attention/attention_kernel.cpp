#include "nn/attention/attention_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "nn/value_capsule.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::nn {

namespace {

constexpr double kNoDropout = 0;

class CudaFlashAttention : public AttentionKernel {
 public:
  explicit CudaFlashAttention(VarlenArgs args) : varlen_args_(std::move(args)) {
    if (!varlen_args_.window) return;
    rows_before_ = *varlen_args_.window - 1;
    rows_after_ = 0;
  }

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, random_state, unused, mask] = at::_flash_attention_forward(
        query, key, value, varlen_args_.offsets, varlen_args_.offsets, varlen_args_.max_length, varlen_args_.max_length,
        kNoDropout, varlen_args_.is_causal,
        /*return_debug_mask=*/false, compute_attention_scale(query), rows_before_, rows_after_);
    return {output, logsumexp, random_state, unused};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv] = at::_flash_attention_backward(
        gradient, query, key, value, outputs[0], outputs[1], varlen_args_.offsets, varlen_args_.offsets,
        varlen_args_.max_length, varlen_args_.max_length, kNoDropout, varlen_args_.is_causal, outputs[2], outputs[3],
        compute_attention_scale(query), rows_before_, rows_after_);
    return {dq, dk, dv};
  }

 private:
  VarlenArgs varlen_args_;
  std::optional<int64_t> rows_before_, rows_after_;
};

class CudaMemoryEfficientAttention : public AttentionKernel {
 public:
  explicit CudaMemoryEfficientAttention(VarlenArgs args) : varlen_args_(std::move(args)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, /*bias=*/{}, varlen_args_.offsets, varlen_args_.offsets, varlen_args_.max_length,
        varlen_args_.max_length, kNoDropout, get_custom_mask_type(), /*compute_log_sumexp=*/true,
        compute_attention_scale(query));
    return {output, logsumexp, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv, dbias] =
        at::_efficient_attention_backward(gradient, query, key, value, /*bias=*/{}, outputs[0], varlen_args_.offsets,
                                          varlen_args_.offsets, varlen_args_.max_length, varlen_args_.max_length,
                                          outputs[1], kNoDropout, outputs[2], outputs[3], get_custom_mask_type(),
                                          /*bias_requires_grad=*/false, compute_attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  int64_t get_custom_mask_type() const {
    // Values of CustomMaskType of ATen's kernel.
    constexpr int64_t kNoCustomMask = 0;
    constexpr int64_t kCausalFromTopLeft = 1;
    return varlen_args_.is_causal ? kCausalFromTopLeft : kNoCustomMask;
  }

  VarlenArgs varlen_args_;
};

class CudaMaskedAttention : public AttentionKernel {
 public:
  explicit CudaMaskedAttention(at::Tensor mask) : mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, expand_bias(query), /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, query.size(1), key.size(1),
        kNoDropout, kNoCustomMask, /*compute_log_sumexp=*/true, compute_attention_scale(query));
    return {output, logsumexp, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
        gradient, query, key, value, expand_bias(query), outputs[0], /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{},
        query.size(1), key.size(1), outputs[1], kNoDropout, outputs[2], outputs[3], kNoCustomMask,
        /*bias_requires_grad=*/false, compute_attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  static constexpr int64_t kNoCustomMask = 0;

  at::Tensor expand_bias(const at::Tensor& query) const { return mask_.expand({1, query.size(2), -1, -1}); }

  at::Tensor mask_;
};

class CpuFlashAttention : public AttentionKernel {
 public:
  explicit CpuFlashAttention(bool is_causal, std::optional<at::Tensor> mask = std::nullopt)
      : is_causal_(is_causal), mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, kNoDropout, is_causal_, mask_, compute_attention_scale(query));
    return {output, logsumexp};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, outputs[0], outputs[1], kNoDropout, is_causal_, mask_,
        compute_attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  bool is_causal_;
  std::optional<at::Tensor> mask_;
};

/// Indices into the outputs of a kernel.
constexpr int64_t kOutputIndex = 0, kLogSumExpIndex = 1, kFirstStateIndex = 2;

/// Reshapes [heads, rows] to [rows, heads, 1], which broadcasts over [rows, heads, head_dim].
at::Tensor to_row_factors(const at::Tensor& by_head) {
  return by_head.t().unsqueeze(-1);
}

class CombinedAttention : public AttentionKernel {
 public:
  CombinedAttention(std::shared_ptr<const AttentionKernel> first, std::shared_ptr<const AttentionKernel> second,
                    ExtraKeys extra_keys)
      : first_kernel_(std::move(first)), second_kernel_(std::move(second)), extra_keys_(std::move(extra_keys)) {}

  bool has_autograd_formula() const override { return false; }

  /// Returns the merged output and log-sum-exp, then the state of the first kernel and the state of
  /// the second.
  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto outputs = first_kernel_->forward(query, key, value);
    const auto second_outputs =
        second_kernel_->forward(select_query_rows(query), select_key_rows(key), select_key_rows(value));
    VLMTRAIN_CHECK(outputs.size() == second_outputs.size(), "cannot join attention kernels that save {} and {} tensors",
                   outputs.size(), second_outputs.size());
    merge(outputs[kOutputIndex], outputs[kLogSumExpIndex], second_outputs[kOutputIndex],
          second_outputs[kLogSumExpIndex]);
    outputs.insert(outputs.end(), second_outputs.begin() + kFirstStateIndex, second_outputs.end());
    return outputs;
  }

  /// Passes the output and log-sum-exp of the whole softmax to each kernel. Each kernel then
  /// returns the part of the gradients that belongs to its keys.
  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    const auto second_state_begin = outputs.begin() + kFirstStateIndex + (std::ssize(outputs) - kFirstStateIndex) / 2;
    Gradients gradients = first_kernel_->backward(gradient, query, key, value, {outputs.begin(), second_state_begin});
    std::vector<at::Tensor> second_outputs{select_query_rows(outputs[kOutputIndex]),
                                           outputs[kLogSumExpIndex].index_select(1, extra_keys_.query_rows)};
    second_outputs.insert(second_outputs.end(), second_state_begin, outputs.end());
    const Gradients second_gradients =
        second_kernel_->backward(select_query_rows(gradient), select_query_rows(query), select_key_rows(key),
                                 select_key_rows(value), second_outputs);
    gradients.query.index_add_(0, extra_keys_.query_rows, second_gradients.query);
    gradients.key.index_add_(0, extra_keys_.key_rows, second_gradients.key);
    gradients.value.index_add_(0, extra_keys_.key_rows, second_gradients.value);
    return gradients;
  }

 private:
  at::Tensor select_query_rows(const at::Tensor& rows) const { return rows.index_select(0, extra_keys_.query_rows); }
  at::Tensor select_key_rows(const at::Tensor& rows) const { return rows.index_select(0, extra_keys_.key_rows); }

  /// Merges the outputs o₁ and o₂ with the log-sum-exps a and b into (e^a o₁ + e^b o₂) / (e^a +
  /// e^b) for the selected rows, in fp32 with one rounding.
  void merge(at::Tensor& output, at::Tensor& logsumexp, const at::Tensor& second_output,
             const at::Tensor& second_logsumexp) const {
    const at::Tensor first_logsumexp = logsumexp.index_select(1, extra_keys_.query_rows);
    const at::Tensor second_weight = at::sigmoid(second_logsumexp - first_logsumexp);  // weight of the second kernel
    at::Tensor merged = at::mul(select_query_rows(output), to_row_factors(1 - second_weight));
    merged.addcmul_(second_output, to_row_factors(second_weight));
    output.index_copy_(0, extra_keys_.query_rows, merged.to(output.scalar_type()));
    logsumexp.index_copy_(1, extra_keys_.query_rows, at::logaddexp(first_logsumexp, second_logsumexp));
  }

  std::shared_ptr<const AttentionKernel> first_kernel_, second_kernel_;
  ExtraKeys extra_keys_;
};

/// Returns segments [first, first + count) with offsets relative to their first row, `first_row`.
Segments slice_segments(const Segments& segments, int64_t first, int64_t count, int64_t first_row) {
  Segments chunk;
  const auto begin = segments.lengths.begin() + first;
  chunk.lengths.assign(begin, begin + count);
  chunk.max_length = *std::ranges::max_element(chunk.lengths);
  chunk.rows = std::accumulate(chunk.lengths.begin(), chunk.lengths.end(), int64_t{0});
  chunk.offsets = segments.offsets.narrow(0, first, count + 1) - first_row;
  return chunk;
}

}  // namespace

bool has_flash_kernel(at::ScalarType dtype, int64_t head_dim, at::Device device) {
  // FlashAttention-2 is compiled for sm_80 and newer.
  constexpr int kMinFlashArchitecture = 80;
  constexpr int64_t kMaxFlashHeadDim = 256;
  return dtype != at::kFloat && head_dim <= kMaxFlashHeadDim &&
         memory::get_architecture(device) >= kMinFlashArchitecture;
}

std::shared_ptr<const AttentionKernel> make_cuda_flash_kernel(VarlenArgs args) {
  return std::make_shared<CudaFlashAttention>(std::move(args));
}

std::shared_ptr<const AttentionKernel> make_cuda_memory_efficient_kernel(VarlenArgs args) {
  return std::make_shared<CudaMemoryEfficientAttention>(std::move(args));
}

std::shared_ptr<const AttentionKernel> make_cpu_flash_kernel(bool is_causal) {
  return std::make_shared<CpuFlashAttention>(is_causal);
}

std::shared_ptr<const AttentionKernel> make_cpu_masked_kernel(const at::Tensor& mask) {
  return std::make_shared<CpuFlashAttention>(/*is_causal=*/false, mask.expand({1, 1, -1, -1}));
}

std::shared_ptr<const AttentionKernel> make_cuda_masked_kernel(at::Tensor mask) {
  return std::make_shared<CudaMaskedAttention>(std::move(mask));
}

ExtraKeys make_future_keys(const BidirectionalSpans& spans) {
  // Indices into the rows of the spans.
  std::vector<int64_t> queries, keys;
  int64_t end = 0;
  for (const int64_t length : spans.lengths) {
    const int64_t first = end;
    end += length;
    for (int64_t row = end - 1; row > first; --row) {
      queries.push_back(row - 1);
      keys.push_back(row);
    }
  }
  const auto select = [&](const std::vector<int64_t>& indices) {
    return spans.rows.index_select(0, memory::copy_to_device(indices, spans.rows.device()));
  };
  return {.query_rows = select(queries), .key_rows = select(keys)};
}

std::shared_ptr<const AttentionKernel> make_combined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                            std::shared_ptr<const AttentionKernel> second,
                                                            ExtraKeys extra_keys) {
  return std::make_shared<CombinedAttention>(std::move(first), std::move(second), std::move(extra_keys));
}

at::Tensor attend_chunked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const Segments& segments, int64_t max_segments, const SegmentAttentionFunction& attend) {
  const int64_t count = std::ssize(segments.lengths);
  if (count <= max_segments) return attend(query, key, value, segments);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (int64_t first = 0; first < count; first += max_segments) {
    const Segments chunk = slice_segments(segments, first, std::min(max_segments, count - first), row);
    const auto slice = [&](const at::Tensor& rows) { return rows.narrow(0, row, chunk.rows); };
    outputs.push_back(attend(slice(query), slice(key), slice(value), chunk));
    row += chunk.rows;
  }
  return at::cat(outputs);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local SelectiveCheckpoint* current_checkpoint = nullptr;
thread_local SelectiveCheckpoint::Mode current_mode = SelectiveCheckpoint::Mode::kRecord;

/// A kernel with the result of its forward().
struct AttentionCall {
  std::shared_ptr<const AttentionKernel> kernel;
  std::vector<at::Tensor> outputs;
};
using AttentionCallCapsule = ValueCapsule<AttentionCall>;

/// Attention whose forward() has already run; backward() of the kernel computes the gradients.
struct PrecomputedAttention : torch::autograd::Function<PrecomputedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const c10::intrusive_ptr<AttentionCallCapsule>& call) {
    variable_list tensors{query, key, value};
    tensors.insert(tensors.end(), call->value.outputs.begin(), call->value.outputs.end());
    context->save_for_backward(std::move(tensors));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    at::Tensor output = call->value.outputs.front();
    call->value.outputs.clear();  // so that the autograd node alone owns the tensors and frees them early
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call = c10::static_intrusive_pointer_cast<AttentionCallCapsule>(context->saved_data["call"].toCapsule());
    const variable_list saved_tensors = context->get_saved_variables();
    constexpr int64_t kNumInputs = 3;  // query, key, value
    const auto kernel_gradients =
        call->value.kernel->backward(gradients[0], saved_tensors[0], saved_tensors[1], saved_tensors[2],
                                     {saved_tensors.begin() + kNumInputs, saved_tensors.end()});
    return {kernel_gradients.query, kernel_gradients.key, kernel_gradients.value, at::Tensor()};
  }
};

std::vector<at::Tensor> run_kernel(const AttentionKernel& kernel, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value) {
  const at::NoGradGuard no_gradients;
  return kernel.forward(query, key, value);
}

}  // namespace

SelectiveCheckpoint::Scope::Scope(SelectiveCheckpoint* checkpoint, Mode mode)
    : outer_checkpoint_(std::exchange(current_checkpoint, checkpoint)),
      outer_mode_(std::exchange(current_mode, mode)) {}

SelectiveCheckpoint::Scope::~Scope() {
  current_checkpoint = outer_checkpoint_;
  current_mode = outer_mode_;
}

at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value) {
  SelectiveCheckpoint* const checkpoint = current_checkpoint;
  if (checkpoint == nullptr) {
    if (kernel->has_autograd_formula() || !at::GradMode::is_enabled())
      return kernel->forward(query, key, value).front();
    return PrecomputedAttention::apply(
        query, key, value,
        c10::make_intrusive<AttentionCallCapsule>(AttentionCall{kernel, run_kernel(*kernel, query, key, value)}));
  }
  if (current_mode == SelectiveCheckpoint::Mode::kRecord) {
    checkpoint->recorded_outputs_.push_back(kernel->forward(query, key, value));
    return checkpoint->recorded_outputs_.back().front();
  }
  VLMTRAIN_CHECK(checkpoint->next_call_index_ < checkpoint->recorded_outputs_.size(),
                 "the recomputed block calls attention {} times, more often than its first forward pass",
                 checkpoint->next_call_index_ + 1);
  return PrecomputedAttention::apply(
      query, key, value,
      c10::make_intrusive<AttentionCallCapsule>(
          AttentionCall{kernel, std::move(checkpoint->recorded_outputs_[checkpoint->next_call_index_++])}));
}

}  // namespace vlmtrain::nn

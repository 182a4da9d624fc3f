#include "nn/attention/packed_attention.h"

#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>

#include <limits>
#include <utility>
#include <vector>

#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::nn {

namespace {

/// The kernel rounds the rows of its log-sum-exps up to a multiple of this number (kAlignLSE).
constexpr int64_t kLogSumExpAlignment = 32;

/// The memory-efficient kernel with the shapes of the flash kernel.
class PackedMemoryEfficientAttention final : public AttentionKernel {
 public:
  explicit PackedMemoryEfficientAttention(const Segments& segments)
      : kernel_(make_cuda_memory_efficient_kernel(
            {.offsets = segments.offsets, .max_length = segments.max_length, .is_causal = true})),
        logsumexp_(segments) {}

  bool has_autograd_formula() const override { return false; }

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    std::vector<at::Tensor> outputs =
        kernel_->forward(query.unsqueeze(0), expand_heads(key, query), expand_heads(value, query));
    outputs[0] = outputs[0].squeeze(0);
    outputs[1] = logsumexp_.pack(outputs[1]);
    return outputs;
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    std::vector<at::Tensor> kernel_outputs = outputs;
    kernel_outputs[0] = outputs[0].unsqueeze(0);
    kernel_outputs[1] = logsumexp_.pad(outputs[1]);
    const Gradients gradients = kernel_->backward(gradient.unsqueeze(0), query.unsqueeze(0), expand_heads(key, query),
                                                  expand_heads(value, query), kernel_outputs);
    return {gradients.query.squeeze(0), sum_groups(gradients.key, key), sum_groups(gradients.value, value)};
  }

 private:
  /// Repeats each head for the queries that share it, since the kernel does not support grouped
  /// queries: [rows, key_value_heads, head_dim] → [1, rows, heads, head_dim].
  static at::Tensor expand_heads(const at::Tensor& x, const at::Tensor& query) {
    const int64_t heads_per_group = query.size(1) / x.size(1);
    return (heads_per_group == 1 ? x : at::repeat_interleave(x, heads_per_group, 1)).unsqueeze(0);
  }

  /// Returns the gradient of x, given that of expand_heads(x).
  static at::Tensor sum_groups(const at::Tensor& gradient, const at::Tensor& x) {
    at::Tensor by_head = gradient.squeeze(0);
    if (by_head.size(1) == x.size(1)) return by_head;
    return by_head.unflatten(1, {x.size(1), -1}).sum(2);
  }

  std::shared_ptr<const AttentionKernel> kernel_;
  PaddedLogSumExp logsumexp_;
};

}  // namespace

PaddedLogSumExp::PaddedLogSumExp(const Segments& segments)
    : num_segments_(std::ssize(segments.lengths)),
      padded_rows_((segments.max_length + kLogSumExpAlignment - 1) / kLogSumExpAlignment * kLogSumExpAlignment) {
  std::vector<int64_t> flat_rows;
  flat_rows.reserve(static_cast<size_t>(segments.rows));
  for (int64_t segment = 0; segment < num_segments_; ++segment) {
    for (int64_t row = 0; row < segments.lengths[static_cast<size_t>(segment)]; ++row)
      flat_rows.push_back(segment * padded_rows_ + row);
  }
  flat_rows_ = memory::copy_to_device(flat_rows, segments.offsets.device());
}

at::Tensor PaddedLogSumExp::pack(const at::Tensor& padded) const {
  return padded.transpose(0, 1).reshape({padded.size(1), -1}).index_select(1, flat_rows_);
}

at::Tensor PaddedLogSumExp::pad(const at::Tensor& packed) const {
  const int64_t heads = packed.size(0);
  return at::full({heads, num_segments_ * padded_rows_}, std::numeric_limits<double>::infinity(), packed.options())
      .index_copy_(1, flat_rows_, packed)
      .view({heads, num_segments_, padded_rows_})
      .transpose(0, 1)
      .contiguous();
}

std::shared_ptr<const AttentionKernel> make_cuda_packed_memory_efficient_kernel(const Segments& segments) {
  return std::make_shared<PackedMemoryEfficientAttention>(segments);
}

}  // namespace vlmtrain::nn

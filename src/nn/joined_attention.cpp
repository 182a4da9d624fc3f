#include "nn/joined_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>

#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kOutput = 0, kLogSumExp = 1, kKernelState = 2;

/// [heads, rows] as factors of [rows, heads, head_dim].
at::Tensor to_row_factors(const at::Tensor& by_head) {
  return by_head.t().unsqueeze(-1);
}

class JoinedKernel : public AttentionKernel {
 public:
  JoinedKernel(std::shared_ptr<const AttentionKernel> first, std::shared_ptr<const AttentionKernel> second,
               ExtraKeys extra)
      : first_(std::move(first)), second_(std::move(second)), extra_(std::move(extra)) {}

  bool has_autograd_formula() const override { return false; }

  /// Behind output and sums what the first kernel keeps beside them, then what the second does.
  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto outputs = first_->forward(query, key, value);
    const auto extra = second_->forward(select_query_rows(query), select_key_rows(key), select_key_rows(value));
    VLMTRAIN_CHECK(outputs.size() == extra.size(), "two kernels of attention that keep {} and {} tensors",
                   outputs.size(), extra.size());
    merge(outputs[kOutput], outputs[kLogSumExp], extra[kOutput], extra[kLogSumExp]);
    outputs.insert(outputs.end(), extra.begin() + kKernelState, extra.end());
    return outputs;
  }

  /// With the output and the sums of the whole softmax each kernel finds its own keys' share of the gradients.
  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    const auto second_state = outputs.begin() + kKernelState + (std::ssize(outputs) - kKernelState) / 2;
    Gradients gradients = first_->backward(gradient, query, key, value, {outputs.begin(), second_state});
    std::vector<at::Tensor> second_outputs{select_query_rows(outputs[kOutput]),
                                           outputs[kLogSumExp].index_select(1, extra_.query_rows)};
    second_outputs.insert(second_outputs.end(), second_state, outputs.end());
    const Gradients extra = second_->backward(select_query_rows(gradient), select_query_rows(query),
                                              select_key_rows(key), select_key_rows(value), second_outputs);
    gradients.query.index_add_(0, extra_.query_rows, extra.query);
    gradients.key.index_add_(0, extra_.key_rows, extra.key);
    gradients.value.index_add_(0, extra_.key_rows, extra.value);
    return gradients;
  }

 private:
  at::Tensor select_query_rows(const at::Tensor& rows) const { return rows.index_select(0, extra_.query_rows); }
  at::Tensor select_key_rows(const at::Tensor& rows) const { return rows.index_select(0, extra_.key_rows); }

  /// Of o₁ with sum e^a and o₂ with sum e^b: (e^a o₁ + e^b o₂) / (e^a + e^b), for the rows that ask. In fp32, rounded
  /// once.
  void merge(at::Tensor& output, at::Tensor& logsumexp, const at::Tensor& extra,
             const at::Tensor& extra_logsumexp) const {
    const at::Tensor base_logsumexp = logsumexp.index_select(1, extra_.query_rows);
    const at::Tensor extra_share = at::sigmoid(extra_logsumexp - base_logsumexp);  // of the second
    at::Tensor merged = at::mul(select_query_rows(output), to_row_factors(1 - extra_share));
    merged.addcmul_(extra, to_row_factors(extra_share));
    output.index_copy_(0, extra_.query_rows, merged.to(output.scalar_type()));
    logsumexp.index_copy_(1, extra_.query_rows, at::logaddexp(base_logsumexp, extra_logsumexp));
  }

  std::shared_ptr<const AttentionKernel> first_, second_;
  ExtraKeys extra_;
};

}  // namespace

ExtraKeys make_ahead_keys(const BidirectionalSpans& spans) {
  const at::Tensor reversed = spans.rows.view({-1, spans.length}).flip(1);
  return {.query_rows = reversed.narrow(1, 1, spans.length - 1).flatten(),
          .key_rows = reversed.narrow(1, 0, spans.length - 1).flatten()};
}

std::shared_ptr<const AttentionKernel> make_joined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                          std::shared_ptr<const AttentionKernel> second,
                                                          ExtraKeys extra) {
  return std::make_shared<JoinedKernel>(std::move(first), std::move(second), std::move(extra));
}

}  // namespace vlmtrain::nn

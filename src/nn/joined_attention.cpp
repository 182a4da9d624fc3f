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

constexpr int64_t kOutput = 0, kLogSums = 1, kOwn = 2;

/// [heads, rows] as factors of [rows, heads, head_dim].
at::Tensor of_rows(const at::Tensor& by_head) {
  return by_head.t().unsqueeze(-1);
}

class Joined : public AttentionKernel {
 public:
  Joined(std::shared_ptr<const AttentionKernel> first, std::shared_ptr<const AttentionKernel> second, MoreKeys more)
      : first_(std::move(first)), second_(std::move(second)), more_(std::move(more)) {}

  bool is_one_operation() const override { return false; }

  /// Behind output and sums what the first kernel keeps beside them, then what the second does.
  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto made = first_->forward(query, key, value);
    const auto more = second_->forward(asking(query), seen(key), seen(value));
    VLMTRAIN_CHECK(made.size() == more.size(), "two kernels of attention that keep {} and {} tensors", made.size(),
                   more.size());
    join(made[kOutput], made[kLogSums], more[kOutput], more[kLogSums]);
    made.insert(made.end(), more.begin() + kOwn, more.end());
    return made;
  }

  /// With the output and the sums of the whole softmax each kernel finds its own keys' share of the gradients.
  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    const auto second_own = made.begin() + kOwn + (std::ssize(made) - kOwn) / 2;
    Gradients found = first_->backward(gradient, query, key, value, {made.begin(), second_own});
    std::vector<at::Tensor> of_second{asking(made[kOutput]), made[kLogSums].index_select(1, more_.asking)};
    of_second.insert(of_second.end(), second_own, made.end());
    const Gradients more = second_->backward(asking(gradient), asking(query), seen(key), seen(value), of_second);
    found.query.index_add_(0, more_.asking, more.query);
    found.key.index_add_(0, more_.seen, more.key);
    found.value.index_add_(0, more_.seen, more.value);
    return found;
  }

 private:
  at::Tensor asking(const at::Tensor& rows) const { return rows.index_select(0, more_.asking); }
  at::Tensor seen(const at::Tensor& rows) const { return rows.index_select(0, more_.seen); }

  /// Of o₁ with sum e^a and o₂ with sum e^b: (e^a o₁ + e^b o₂) / (e^a + e^b), for the rows that ask. In fp32, rounded
  /// once.
  void join(at::Tensor& output, at::Tensor& log_sums, const at::Tensor& more, const at::Tensor& more_log_sums) const {
    const at::Tensor own_log_sums = log_sums.index_select(1, more_.asking);
    const at::Tensor share = at::sigmoid(more_log_sums - own_log_sums);  // of the second
    at::Tensor joined = at::mul(asking(output), of_rows(1 - share));
    joined.addcmul_(more, of_rows(share));
    output.index_copy_(0, more_.asking, joined.to(output.scalar_type()));
    log_sums.index_copy_(1, more_.asking, at::logaddexp(own_log_sums, more_log_sums));
  }

  std::shared_ptr<const AttentionKernel> first_, second_;
  MoreKeys more_;
};

}  // namespace

MoreKeys keys_ahead(const TwoWaySpans& spans) {
  const at::Tensor backwards = spans.rows.view({-1, spans.length}).flip(1);
  return {.asking = backwards.narrow(1, 1, spans.length - 1).flatten(),
          .seen = backwards.narrow(1, 0, spans.length - 1).flatten()};
}

std::shared_ptr<const AttentionKernel> joined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                     std::shared_ptr<const AttentionKernel> second, MoreKeys more) {
  return std::make_shared<Joined>(std::move(first), std::move(second), std::move(more));
}

}  // namespace vlmtrain::nn

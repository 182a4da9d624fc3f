#include "vlmtrain/nn/span_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "nn/joined_attention.h"
#include "nn/kept_attention.h"
#include "parity/deviations.h"
#include "vlmtrain/nn/attention.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kHeads = 4, kKeyValueHeads = 2, kFeatures = 6, kSpan = 4;
const std::vector<int64_t> kLengths{13, 9, 3};
/// Two spans in the first segment, the last rows of the second; none in the third.
const std::vector<int64_t> kFirstRows{1, 6, 18};

Segments segments() {
  return Segments::from_lengths(kLengths, at::kCPU);
}

TwoWaySpans spans() {
  std::vector<int64_t> rows;
  for (const int64_t first : kFirstRows) {
    for (int64_t i = 0; i < kSpan; ++i) rows.push_back(first + i);
  }
  return {.rows = at::tensor(rows, at::kLong), .length = kSpan};
}

struct Rows {
  at::Tensor query, key, value;

  static Rows random(at::ScalarType dtype) {
    at::manual_seed(7);
    const auto some = [&](int64_t heads) {
      return at::randn({segments().rows, heads, kFeatures}, at::TensorOptions(at::kDouble)).to(dtype);
    };
    Rows rows{some(kHeads), some(kKeyValueHeads), some(kKeyValueHeads)};
    for (const at::Tensor* each : rows.all()) each->requires_grad_();
    return rows;
  }
  std::array<const at::Tensor*, 3> all() const { return {&query, &key, &value}; }
  std::vector<at::Tensor> inputs() const { return {query, key, value}; }
};

int64_t segment_of(int64_t row) {
  int64_t segment = 0;
  for (int64_t end = kLengths[0]; row >= end; end += kLengths[static_cast<size_t>(segment)]) ++segment;
  return segment;
}

/// The number of the row's span; −1 of a row without.
int64_t span_of(int64_t row) {
  for (size_t i = 0; i < kFirstRows.size(); ++i) {
    if (row >= kFirstRows[i] && row < kFirstRows[i] + kSpan) return static_cast<int64_t>(i);
  }
  return -1;
}

/// As transformers' masks say it: (not after, or in the same span) and within the window.
bool is_seen(int64_t row, int64_t key, std::optional<int64_t> window) {
  const bool in_span = span_of(row) >= 0 && span_of(row) == span_of(key);
  return segment_of(row) == segment_of(key) && (key <= row || in_span) && (!window || key > row - *window);
}

at::Tensor by_formula(const Rows& rows, std::optional<int64_t> window) {
  const int64_t count = rows.query.size(0);
  const at::Tensor mask = at::empty({count, count}, at::kDouble);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t key = 0; key < count; ++key) {
      mask[row][key] = is_seen(row, key, window) ? 0.0 : -std::numeric_limits<double>::infinity();
    }
  }
  const auto heads_first = [](const at::Tensor& x) {
    return at::repeat_interleave(x.to(at::kDouble), kHeads / x.size(1), 1).transpose(0, 1);
  };
  const at::Tensor scores = at::matmul(heads_first(rows.query), heads_first(rows.key).transpose(1, 2));
  const at::Tensor weights = at::softmax(scores / std::sqrt(static_cast<double>(kFeatures)) + mask, -1);
  return at::matmul(weights, heads_first(rows.value)).transpose(0, 1);
}

std::vector<at::Tensor> gradients(const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  at::manual_seed(8);
  const at::Tensor direction = at::randn(output.sizes(), at::TensorOptions(at::kDouble)).to(output.scalar_type());
  return torch::autograd::grad({output}, inputs, {direction});
}

void expect_equal(const at::Tensor& found, const at::Tensor& wanted, const Rows& rows, const Rows& same_rows) {
  EXPECT_LT(parity::relative_difference(found, wanted), 1e-6);
  const auto found_gradients = gradients(found, rows.inputs()),
             wanted_gradients = gradients(wanted, same_rows.inputs());
  for (size_t i = 0; i < found_gradients.size(); ++i) {
    EXPECT_LT(parity::relative_difference(found_gradients[i], wanted_gradients[i]), 2e-6) << i;
  }
}

class SpanAttentionTest : public testing::TestWithParam<std::optional<int64_t>> {};

TEST_P(SpanAttentionTest, EqualsItsFormulaAndItsGradients) {
  const Rows rows = Rows::random(at::kFloat), wide = Rows::random(at::kDouble);
  const SpanAttention attention(segments(), GetParam(), spans(), rows.query.options());
  expect_equal(attention(rows.query, rows.key, rows.value), by_formula(wide, GetParam()), rows, wide);
}

// None, one within a span, one within a segment, one beyond all.
INSTANTIATE_TEST_SUITE_P(Windows, SpanAttentionTest,
                         testing::Values(std::nullopt, std::optional(2), std::optional(7), std::optional(64)));

TEST(SpanAttention, WithoutSpansIsCausalAttention) {
  const Rows rows = Rows::random(at::kFloat);
  const SpanAttention none(segments(), std::nullopt, {}, rows.query.options());
  const SpanAttention of_single_rows(segments(), std::nullopt, {.rows = at::arange(5), .length = 1},
                                     rows.query.options());
  const at::Tensor wanted = attention(rows.query, rows.key, rows.value, segments(), /*causal=*/true);
  EXPECT_TRUE(at::equal(none(rows.query, rows.key, rows.value), wanted));
  EXPECT_TRUE(at::equal(of_single_rows(rows.query, rows.key, rows.value), wanted));
}

/// What the flash kernel on CUDA is to its caller: a stream of segments, and the logarithms of the sums [heads, rows].
class StreamKernel : public AttentionKernel {
 public:
  explicit StreamKernel(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    std::vector<at::Tensor> outputs, log_sums;
    for_each_segment([&](int64_t first, int64_t length) {
      const auto made =
          one_->forward(batch_of(query, first, length), batch_of(key, first, length), batch_of(value, first, length));
      outputs.push_back(made[0].transpose(1, 2).squeeze(0));
      log_sums.push_back(made[1].squeeze(0));
    });
    return {at::cat(outputs), at::cat(log_sums, 1), at::arange(1), at::arange(2)};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    EXPECT_EQ(made.at(2).numel(), 1);
    EXPECT_EQ(made.at(3).numel(), 2);
    std::vector<at::Tensor> of_query, of_key, of_value;
    for_each_segment([&](int64_t first, int64_t length) {
      const auto of = [&](const at::Tensor& x) { return batch_of(x, first, length); };
      const auto found = one_->backward(of(gradient), of(query), of(key), of(value),
                                        {of(made[0]), made[1].narrow(1, first, length).unsqueeze(0)});
      of_query.push_back(found.query.transpose(1, 2).squeeze(0));
      of_key.push_back(found.key.transpose(1, 2).squeeze(0));
      of_value.push_back(found.value.transpose(1, 2).squeeze(0));
    });
    return {at::cat(of_query), at::cat(of_key), at::cat(of_value)};
  }

 private:
  static at::Tensor batch_of(const at::Tensor& x, int64_t first, int64_t length) {
    return x.narrow(0, first, length).unsqueeze(0).transpose(1, 2);
  }
  template <class Visit>
  void for_each_segment(const Visit& visit) const {
    int64_t first = 0;
    for (const int64_t length : lengths_) {
      visit(first, length);
      first += length;
    }
  }

  std::vector<int64_t> lengths_;
  std::shared_ptr<const AttentionKernel> one_ = cpu_flash_kernel(/*causal=*/true);
};

std::shared_ptr<const AttentionKernel> joined() {
  return joined_kernel(std::make_shared<StreamKernel>(kLengths),
                       std::make_shared<StreamKernel>(std::vector<int64_t>(kFirstRows.size(), kSpan - 1)),
                       keys_ahead(spans()));
}

TEST(JoinedAttention, OfTwoKernelsIsTheSoftmaxOverAllKeys) {
  const Rows rows = Rows::random(at::kFloat), wide = Rows::random(at::kDouble);
  expect_equal(attend(joined(), rows.query, rows.key, rows.value), by_formula(wide, std::nullopt), rows, wide);
}

TEST(JoinedAttention, IsKeptThroughRecomputation) {
  const auto kernel = joined();
  const auto block = [&](const at::Tensor& x) {
    const at::Tensor shared = x.narrow(1, 0, kKeyValueHeads);
    return attend(kernel, x, shared * 2, shared.sin());
  };
  const at::Tensor x = Rows::random(at::kFloat).query;
  const at::Tensor wanted = gradients(block(x), {x})[0];
  for (const auto keeps : {RecomputeKeeps::kInput, RecomputeKeeps::kInputAndAttention}) {
    EXPECT_TRUE(at::equal(gradients(recompute(block, x, {}, keeps), {x})[0], wanted));
  }
}

TEST(JoinedAttention, RecordsNothingWithoutGradients) {
  const at::NoGradGuard no_gradients;
  const Rows rows = Rows::random(at::kFloat);
  EXPECT_FALSE(attend(joined(), rows.query, rows.key, rows.value).requires_grad());
}

}  // namespace
}  // namespace vlmtrain::nn

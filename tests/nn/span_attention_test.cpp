#include "vlmtrain/nn/attention/span_attention.h"

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

#include "nn/attention/attention_kernel.h"
#include "nn/attention/packed_attention.h"
#include "parity/deviations.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kNumHeads = 4, kNumKeyValueHeads = 2, kFeatures = 6;
const std::vector<int64_t> kLengths{13, 9, 3};
/// Rows [first, first + length) of the stream.
struct Span {
  int64_t first, length;
};
/// Two adjacent spans and one of a single row in the first segment, one at the end of the second, none in
/// the third.
const std::vector<Span> kSpans{{1, 4}, {5, 6}, {12, 1}, {18, 4}};

Segments make_segments() {
  return Segments::from_lengths(kLengths, at::kCPU);
}

BidirectionalSpans make_spans() {
  std::vector<int64_t> rows, lengths;
  for (const auto& [first, length] : kSpans) {
    for (int64_t i = 0; i < length; ++i) rows.push_back(first + i);
    lengths.push_back(length);
  }
  return {.rows = at::tensor(rows, at::kLong), .lengths = lengths};
}

struct QueryKeyValueRows {
  at::Tensor query, key, value;

  static QueryKeyValueRows make_random(at::ScalarType dtype) {
    at::manual_seed(7);
    const auto make_heads = [&](int64_t heads) {
      return at::randn({make_segments().rows, heads, kFeatures}, at::TensorOptions(at::kDouble)).to(dtype);
    };
    QueryKeyValueRows rows{make_heads(kNumHeads), make_heads(kNumKeyValueHeads), make_heads(kNumKeyValueHeads)};
    for (const at::Tensor* each : rows.all()) each->requires_grad_();
    return rows;
  }
  std::array<const at::Tensor*, 3> all() const { return {&query, &key, &value}; }
  std::vector<at::Tensor> inputs() const { return {query, key, value}; }
};

int64_t find_segment(int64_t row) {
  int64_t segment = 0;
  for (int64_t end = kLengths[0]; row >= end; end += kLengths[static_cast<size_t>(segment)]) ++segment;
  return segment;
}

/// Returns the index of the row's span; −1 if it has none.
int64_t find_span(int64_t row) {
  for (size_t i = 0; i < kSpans.size(); ++i) {
    if (row >= kSpans[i].first && row < kSpans[i].first + kSpans[i].length) return static_cast<int64_t>(i);
  }
  return -1;
}

/// Returns whether a key is visible by transformers' masks: (not later, or in the same span) and
/// within the window.
bool is_visible(int64_t row, int64_t key, std::optional<int64_t> window) {
  const bool in_span = find_span(row) >= 0 && find_span(row) == find_span(key);
  return find_segment(row) == find_segment(key) && (key <= row || in_span) && (!window || key > row - *window);
}

at::Tensor compute_reference(const QueryKeyValueRows& rows, std::optional<int64_t> window) {
  const int64_t count = rows.query.size(0);
  const at::Tensor mask = at::empty({count, count}, at::kDouble);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t key = 0; key < count; ++key) {
      mask[row][key] = is_visible(row, key, window) ? 0.0 : -std::numeric_limits<double>::infinity();
    }
  }
  const auto heads_first = [](const at::Tensor& x) {
    return at::repeat_interleave(x.to(at::kDouble), kNumHeads / x.size(1), 1).transpose(0, 1);
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

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const QueryKeyValueRows& rows,
                  const QueryKeyValueRows& same_rows) {
  EXPECT_LT(parity::relative_difference(actual, expected), 1e-6);
  const auto actual_gradients = gradients(actual, rows.inputs()),
             expected_gradients = gradients(expected, same_rows.inputs());
  for (size_t i = 0; i < actual_gradients.size(); ++i) {
    EXPECT_LT(parity::relative_difference(actual_gradients[i], expected_gradients[i]), 2e-6) << i;
  }
}

class SpanAttentionTest : public testing::TestWithParam<std::optional<int64_t>> {};

TEST_P(SpanAttentionTest, MatchesTheFormulaAndItsGradients) {
  const QueryKeyValueRows rows = QueryKeyValueRows::make_random(at::kFloat),
                          double_rows = QueryKeyValueRows::make_random(at::kDouble);
  const SpanAttention attention(make_segments(), GetParam(), make_spans(), kFeatures, rows.query.options());
  expect_equal(attention(rows.query, rows.key, rows.value), compute_reference(double_rows, GetParam()), rows,
               double_rows);
}

// No window, one shorter than a span, one shorter than a segment, one longer than all.
INSTANTIATE_TEST_SUITE_P(Windows, SpanAttentionTest,
                         testing::Values(std::nullopt, std::optional(2), std::optional(7), std::optional(64)));

TEST(SpanAttention, WithoutSpansIsCausalAttention) {
  const QueryKeyValueRows rows = QueryKeyValueRows::make_random(at::kFloat);
  const SpanAttention without_spans(make_segments(), std::nullopt, {}, kFeatures, rows.query.options());
  const SpanAttention single_row_spans(make_segments(), std::nullopt, {.rows = at::arange(3), .lengths = {1, 1, 1}},
                                       kFeatures, rows.query.options());
  const at::Tensor expected = attention(rows.query, rows.key, rows.value, make_segments(), /*is_causal=*/true);
  EXPECT_TRUE(at::equal(without_spans(rows.query, rows.key, rows.value), expected));
  EXPECT_TRUE(at::equal(single_row_spans(rows.query, rows.key, rows.value), expected));
}

/// A stand-in for CUDA's flash kernel: takes packed segments, returns the log-sum-exps [heads,
/// rows].
class VarlenKernel : public AttentionKernel {
 public:
  explicit VarlenKernel(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    std::vector<at::Tensor> outputs, logsumexp;
    for_each_segment([&](int64_t first, int64_t length) {
      const auto result = kernel_->forward(to_batch(query, first, length), to_batch(key, first, length),
                                           to_batch(value, first, length));
      outputs.push_back(result[0].transpose(1, 2).squeeze(0));
      logsumexp.push_back(result[1].squeeze(0));
    });
    return {at::cat(outputs), at::cat(logsumexp, 1), at::arange(1), at::arange(2)};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& saved) const override {
    EXPECT_EQ(saved.at(2).numel(), 1);
    EXPECT_EQ(saved.at(3).numel(), 2);
    std::vector<at::Tensor> dq, dk, dv;
    for_each_segment([&](int64_t first, int64_t length) {
      const auto slice = [&](const at::Tensor& x) { return to_batch(x, first, length); };
      const auto actual = kernel_->backward(slice(gradient), slice(query), slice(key), slice(value),
                                            {slice(saved[0]), saved[1].narrow(1, first, length).unsqueeze(0)});
      dq.push_back(actual.query.transpose(1, 2).squeeze(0));
      dk.push_back(actual.key.transpose(1, 2).squeeze(0));
      dv.push_back(actual.value.transpose(1, 2).squeeze(0));
    });
    return {at::cat(dq), at::cat(dk), at::cat(dv)};
  }

 private:
  static at::Tensor to_batch(const at::Tensor& x, int64_t first, int64_t length) {
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
  std::shared_ptr<const AttentionKernel> kernel_ = make_cpu_flash_kernel(/*is_causal=*/true);
};

std::shared_ptr<const AttentionKernel> make_test_kernel() {
  const std::vector<int64_t> future_lengths{3, 5, 3};
  return make_combined_kernel(std::make_shared<VarlenKernel>(kLengths), std::make_shared<VarlenKernel>(future_lengths),
                              make_future_keys(make_spans()));
}

TEST(JoinedAttention, MergesTwoKernelsIntoOneSoftmax) {
  const QueryKeyValueRows rows = QueryKeyValueRows::make_random(at::kFloat),
                          double_rows = QueryKeyValueRows::make_random(at::kDouble);
  expect_equal(attend(make_test_kernel(), rows.query, rows.key, rows.value),
               compute_reference(double_rows, std::nullopt), rows, double_rows);
}

TEST(JoinedAttention, WorksWithCheckpointing) {
  const auto kernel = make_test_kernel();
  const auto block = [&](const at::Tensor& x) {
    const at::Tensor shared = x.narrow(1, 0, kNumKeyValueHeads);
    return attend(kernel, x, shared * 2, shared.sin());
  };
  const at::Tensor x = QueryKeyValueRows::make_random(at::kFloat).query;
  const at::Tensor expected = gradients(block(x), {x})[0];
  for (const auto mode : {CheckpointMode::kFull, CheckpointMode::kSelective}) {
    EXPECT_TRUE(at::equal(gradients(run_checkpointed(block, x, {}, mode), {x})[0], expected));
  }
}

TEST(JoinedAttention, RecordsNothingWithoutGradients) {
  const at::NoGradGuard no_gradients;
  const QueryKeyValueRows rows = QueryKeyValueRows::make_random(at::kFloat);
  EXPECT_FALSE(attend(make_test_kernel(), rows.query, rows.key, rows.value).requires_grad());
}

TEST(PaddedLogSumExp, PadsSegmentsToTheLongest) {
  const Segments segments = Segments::from_lengths({3, 33, 1}, at::kCPU);
  const PaddedLogSumExp logsumexp(segments);
  EXPECT_EQ(logsumexp.padded_rows(), 64);
  const at::Tensor packed = at::randn({2, segments.rows});
  const at::Tensor padded = logsumexp.pad(packed);
  ASSERT_EQ(padded.sizes(), at::IntArrayRef({3, 2, 64}));
  int64_t first = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t length = segments.lengths[static_cast<size_t>(i)];
    EXPECT_TRUE(at::equal(padded[i].narrow(1, 0, length), packed.narrow(1, first, length)));
    EXPECT_TRUE(padded[i].narrow(1, length, 64 - length).isposinf().all().item<bool>());
    first += length;
  }
  EXPECT_TRUE(at::equal(logsumexp.pack(padded), packed));
}

}  // namespace
}  // namespace vlmtrain::nn

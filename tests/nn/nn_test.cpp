#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/losses.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

at::Tensor random_leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

at::Tensor compute_reference_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                       std::optional<int64_t> window = std::nullopt) {
  const int64_t group = q.size(1) / k.size(1);
  const auto keys = k.repeat_interleave(group, 1).transpose(0, 1);
  const auto values = v.repeat_interleave(group, 1).transpose(0, 1);
  auto scores = at::matmul(q.transpose(0, 1), keys.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (causal) {
    auto masked = at::ones({q.size(0), q.size(0)}, at::kBool).triu(1);
    if (window) masked = masked.logical_or(at::ones({q.size(0), q.size(0)}, at::kBool).tril(-*window));
    scores = scores.masked_fill(masked, -std::numeric_limits<double>::infinity());
  }
  return at::matmul(scores.softmax(-1), values).transpose(0, 1);
}

void expect_matches_reference(const std::vector<int64_t>& lengths, int64_t key_value_heads, bool causal,
                              std::optional<int64_t> window) {
  at::manual_seed(0);
  const auto segments = Segments::from_lengths(lengths, at::kCPU);
  const auto q = random_leaf({segments.rows, 4, 16});
  const auto k = random_leaf({segments.rows, key_value_heads, 16});
  const auto v = random_leaf({segments.rows, key_value_heads, 16});
  const auto output = attention(q, k, v, segments, causal, window);

  std::vector<at::Tensor> expected;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    expected.push_back(compute_reference_attention(q.narrow(0, first, length), k.narrow(0, first, length),
                                                   v.narrow(0, first, length), causal, window));
    first += length;
  }
  const auto reference = at::cat(expected);
  EXPECT_LT(relative_difference(output, reference), 1e-6);

  const auto direction = at::randn_like(output);
  const auto actual_grads = torch::autograd::grad({output}, {q, k, v}, {direction});
  const auto expected_grads = torch::autograd::grad({reference}, {q, k, v}, {direction});
  for (size_t i = 0; i < actual_grads.size(); ++i)
    EXPECT_LT(relative_difference(actual_grads[i], expected_grads[i]), 1e-5) << i;
}

const auto segment_lengths =
    testing::Values(std::vector<int64_t>{5}, std::vector<int64_t>{7, 7, 7}, std::vector<int64_t>{1, 33, 8, 2});

class AttentionTest : public testing::TestWithParam<std::tuple<std::vector<int64_t>, int64_t, bool>> {};

TEST_P(AttentionTest, MatchesReferenceWithinEachSegment) {
  const auto& [lengths, key_value_heads, causal] = GetParam();
  expect_matches_reference(lengths, key_value_heads, causal, std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Combine(segment_lengths, testing::Values(4, 2, 1), testing::Bool()));

class SlidingWindowTest : public testing::TestWithParam<std::tuple<std::vector<int64_t>, int64_t, int64_t>> {};

TEST_P(SlidingWindowTest, MatchesReferenceWithinTheWindow) {
  const auto& [lengths, key_value_heads, window] = GetParam();
  expect_matches_reference(lengths, key_value_heads, /*causal=*/true, window);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SlidingWindowTest,
                         testing::Combine(segment_lengths, testing::Values(4, 2, 1), testing::Values(1, 3, 8, 32, 33)));

TEST(Rotary, RotatesQueriesAndKeysAndInvertsInBackward) {
  constexpr int64_t kTokens = 6, kFeatures = 8;
  constexpr HeadShape kHeadShape{.num_heads = 2, .num_key_value_heads = 1, .head_dim = kFeatures};
  const auto positions = at::tensor({0, 1, 2, 3, 0, 1}, at::kLong);
  const auto table = RotaryTable::from_positions(positions, compute_inv_freq(kFeatures, 10000.0));
  const auto x = random_leaf({kTokens, 4 * kFeatures});
  const auto [query, key, value] = split_and_rotate_heads(x, kHeadShape, table);
  const auto heads = x.detach().view({kTokens, 4, kFeatures});
  const auto rotated = at::cat({query, key}, 1);
  for (int64_t row = 0; row < kTokens; ++row) {
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t pair = 0; pair < kFeatures / 2; ++pair) {
        const double angle = static_cast<double>(positions[row].item<int64_t>()) *
                             std::pow(10000.0, -2.0 * static_cast<double>(pair) / kFeatures);
        const double a = heads[row][head][pair].item<double>();
        const double b = heads[row][head][pair + 4].item<double>();
        EXPECT_NEAR(rotated[row][head][pair].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
        EXPECT_NEAR(rotated[row][head][pair + 4].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-5);
      }
    }
  }
  EXPECT_TRUE(at::equal(value, heads.narrow(1, 3, 1)));
  // The inverse rotation restores the input.
  const auto rotated_back =
      torch::autograd::grad({query, key, value}, {x}, {query.detach(), key.detach(), value.detach()})[0];
  EXPECT_LT(relative_difference(rotated_back, x), 1e-6);
}

class RmsNormTest : public testing::TestWithParam<std::tuple<at::ScalarType, NormGain>> {};

TEST_P(RmsNormTest, EqualsItsFormula) {
  at::manual_seed(3);
  const auto [type, gain] = GetParam();
  ParameterStore store(at::TensorOptions().dtype(type));
  const RmsNorm norm(ParameterScope(store, Component::kLanguageModel, "norm"), 16, 1e-5, gain);
  const auto weight = store.all()[0].tensor;
  weight.detach().uniform_(0.5, 1.5);
  const auto x = at::randn({5, 16}).to(type).set_requires_grad(true);
  const auto double_x = x.detach().to(at::kDouble).set_requires_grad(true);
  const auto double_weight = weight.detach().to(at::kDouble).set_requires_grad(true);
  const auto factor = gain == NormGain::kWeight ? double_weight : 1 + double_weight;
  const auto expected = double_x * (double_x.pow(2).mean(-1, true) + 1e-5).rsqrt() * factor;
  const auto output = norm(x);
  EXPECT_EQ(output.scalar_type(), type);
  EXPECT_LT(relative_difference(output.to(at::kDouble), expected), type == at::kFloat ? 1e-6 : 1e-2);
  const auto direction = at::randn({5, 16}).to(type);
  const auto actual_grads = torch::autograd::grad({output}, {x, weight}, {direction});
  const auto expected_grads = torch::autograd::grad({expected}, {double_x, double_weight}, {direction.to(at::kDouble)});
  for (size_t i = 0; i < actual_grads.size(); ++i) {
    EXPECT_LT(relative_difference(actual_grads[i].to(at::kDouble), expected_grads[i]), type == at::kFloat ? 1e-5 : 2e-2)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndGains, RmsNormTest,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(NormGain::kWeight, NormGain::kOnePlusWeight)));

TEST(RmsNormTest, KeepsSmallOffsetsFromOne) {
  at::manual_seed(3);
  ParameterStore store(at::TensorOptions().dtype(at::kBFloat16));
  const RmsNorm norm(ParameterScope(store, Component::kLanguageModel, "norm"), 256, 1e-6, NormGain::kOnePlusWeight);
  const auto weight = store.all()[0].tensor.detach();
  const auto x = at::randn({64, 256}).to(at::kBFloat16);
  const auto sum_output = [&](double value) {
    weight.fill_(value);
    return norm(x).detach().abs().to(at::kDouble).sum().item<double>();
  };
  EXPECT_NEAR(sum_output(0.003) / sum_output(0), 1.003, 1.5e-3);  // 1.003 is 1 in bf16
}

class FusedLossTest : public testing::TestWithParam<int64_t> {};

TEST_P(FusedLossTest, EqualsProjectionAndCrossEntropyForEveryChunking) {
  at::manual_seed(1);
  const auto hidden = random_leaf({13, 8});
  const auto weight = random_leaf({31, 8});
  const auto labels = at::randint(31, {13}, at::kLong);
  const auto loss = linear_cross_entropy(hidden, {weight}, labels, 40.0, GetParam()) * 3;
  const auto expected = at::cross_entropy_loss(at::mm(hidden, weight.t()), labels, {}, at::Reduction::Sum) / 40.0 * 3;
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  const auto actual_grads = torch::autograd::grad({loss}, {hidden, weight});
  const auto expected_grads = torch::autograd::grad({expected}, {hidden, weight});
  EXPECT_LT(relative_difference(actual_grads[0], expected_grads[0]), 1e-6);
  EXPECT_LT(relative_difference(actual_grads[1], expected_grads[1]), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(ChunkRows, FusedLossTest, testing::Values(1, 4, 13, 100));

/// A gradient of 1e-8 and a loss scale that are both outside of the range of fp16.
TEST(FusedLoss, KeepsSmallGradientsInFp16) {
  at::manual_seed(2);
  const auto hidden = random_leaf({50, 8}), weight = random_leaf({31, 8});
  const auto half_hidden = hidden.detach().to(at::kHalf).set_requires_grad(true);
  const auto half_weight = weight.detach().to(at::kHalf).set_requires_grad(true);
  const auto labels = at::randint(31, {50}, at::kLong);
  constexpr double kManyLabels = 1e6;
  constexpr double kScale = 1 << 20;
  const auto expected_grads =
      torch::autograd::grad({linear_cross_entropy(hidden, {weight}, labels, kManyLabels, 16)}, {hidden, weight});
  const auto actual_grads =
      torch::autograd::grad({linear_cross_entropy(half_hidden, {half_weight}, labels, kManyLabels, 16)},
                            {half_hidden, half_weight}, {at::full({}, kScale)});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(actual_grads[i].scalar_type(), at::kHalf);
    EXPECT_LT(relative_difference(actual_grads[i].to(at::kDouble) / kScale, expected_grads[i].to(at::kDouble)), 2e-3);
  }
}

/// 2,048 rows with one label: their sum exceeds the largest fp16 number before the division by the
/// labels.
TEST(FusedLoss, AddsUpManyRowsInFp16) {
  const auto hidden = at::full({2048, 8}, 60.0, at::kHalf);
  const auto weight = at::zeros({4, 8}, at::kHalf).set_requires_grad(true);
  const auto loss = linear_cross_entropy(hidden, {weight}, at::zeros({2048}, at::kLong), 2048.0, 2048);
  const auto gradient = torch::autograd::grad({loss}, {weight})[0].to(at::kDouble);
  EXPECT_NEAR(gradient[0][0].item<double>(), -0.75 * 60, 0.1);
  EXPECT_NEAR(gradient[1][0].item<double>(), 0.25 * 60, 0.1);
}

TEST(FusedLoss, SkipsUnneededGradients) {
  const auto hidden = random_leaf({3, 4});
  const auto frozen = at::randn({5, 4});
  const auto labels = at::zeros({3}, at::kLong);
  const auto loss = linear_cross_entropy(hidden, {frozen}, labels, 3.0, 2);
  EXPECT_TRUE(torch::autograd::grad({loss}, {hidden})[0].defined());
  EXPECT_FALSE(linear_cross_entropy(hidden.detach(), {frozen}, labels, 3.0, 2).requires_grad());
}

TEST(Recompute, GivesTheSameLossAndGradientsWithDropoutInside) {
  const auto x = random_leaf({6, 4});
  const auto w = random_leaf({4, 4});
  const auto frozen = at::randn({4, 4});
  const auto block = [&](const at::Tensor& input) {
    return segment_dropout(at::linear(at::linear(input, w), frozen).tanh(), 0.5, /*layer=*/1);
  };
  const auto sum_output = [&](const auto& run_block) {
    const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 7}, {.seed = 8}});
    return run_block(run_block(x)).pow(2).sum();
  };
  const auto plain = sum_output(block);
  const auto expected_grads = torch::autograd::grad({plain}, {x, w});

  const auto recomputed = sum_output([&](const at::Tensor& input) {
    return run_checkpointed(block, input, {w, frozen});
  });
  const DropoutScope other_scope(std::vector<DropoutSegment>{{.seed = 9}});
  const auto actual_grads = torch::autograd::grad({recomputed}, {x, w});
  EXPECT_EQ(recomputed.item<double>(), plain.item<double>());
  EXPECT_TRUE(at::equal(actual_grads[0], expected_grads[0]));
  EXPECT_LT(relative_difference(actual_grads[1], expected_grads[1]),
            1e-6);  // the two gradients of the shared weight are added in another order
}

}  // namespace
}  // namespace vlmtrain::nn

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kTokens = 7, kHeadFeatures = 8;
constexpr HeadShape kShape{.num_heads = 4, .num_key_value_heads = 2, .head_dim = kHeadFeatures};
constexpr double kNormEpsilon = 1e-5;

/// Rotates the pairs of each of `num_parts` parts of the heads.
at::Tensor rotate_by_formula(const at::Tensor& heads, const RotaryTable& table) {
  const int64_t half = kHeadFeatures / table.num_parts / 2;
  std::vector<at::Tensor> rotated;
  for (int64_t part = 0; part < table.num_parts; ++part) {
    const auto first = heads.narrow(2, 2 * part * half, half), second = heads.narrow(2, (2 * part + 1) * half, half);
    const auto cos = table.cos.narrow(2, part * half, half), sin = table.sin.narrow(2, part * half, half);
    rotated.push_back(first * cos - second * sin);
    rotated.push_back(second * cos + first * sin);
  }
  return at::cat(rotated, 2);
}

/// Norm and rotation by their formulas, with ordinary autograd.
std::vector<at::Tensor> compute_reference(const at::Tensor& x, const HeadShape& shape,
                                          const std::array<at::Tensor, 2>& weights, const RotaryTable& table) {
  const auto heads = x.view({kTokens, -1, kHeadFeatures});
  const auto norm_and_rotate = [&](const at::Tensor& part, const at::Tensor& weight) {
    return rotate_by_formula(part * (part.pow(2).mean(-1, true) + kNormEpsilon).rsqrt() * weight, table);
  };
  const auto keys = heads.narrow(1, shape.num_heads, shape.num_key_value_heads);
  return {norm_and_rotate(heads.narrow(1, 0, shape.num_heads), weights[0]), norm_and_rotate(keys, weights[1]),
          shape.has_value_projection
              ? heads.narrow(1, shape.num_heads + shape.num_key_value_heads, shape.num_key_value_heads)
              : keys};
}

struct QkNormCase {
  NormGain gain;
  int64_t num_parts;
  bool has_value_projection;
};

class QkNormTest : public testing::TestWithParam<QkNormCase> {};

TEST_P(QkNormTest, MatchesTheFormulaAndItsGradients) {
  const auto& [gain, num_parts, has_value_projection] = GetParam();
  at::manual_seed(3);
  HeadShape shape = kShape;
  shape.has_value_projection = has_value_projection;
  ParameterStore store{at::TensorOptions()};
  const QkNorm norms(ParameterScope(store, Component::kLanguageModel, "attention"), kHeadFeatures, kNormEpsilon, gain);
  ASSERT_EQ(store.all()[0].name, "attention.q_norm.weight");
  ASSERT_EQ(store.all()[1].name, "attention.k_norm.weight");
  std::array<at::Tensor, 2> weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& norm_weight = store.all()[i].tensor;
    norm_weight.detach().uniform_(0.5, 1.5);
    weights[i] = norm_weight.detach().to(at::kDouble).set_requires_grad(true);
  }
  const auto positions = at::tensor({0, 1, 2, 3, 0, 1, 9}, at::kLong);
  auto table = RotaryTable::from_positions(positions, compute_inv_freq(kHeadFeatures, 100.0));
  table.num_parts = num_parts;
  const int64_t num_heads = shape.num_heads + (has_value_projection ? 2 : 1) * shape.num_key_value_heads;
  const auto x = at::randn({kTokens, num_heads * kHeadFeatures}).set_requires_grad(true);
  const auto double_x = x.detach().to(at::kDouble).set_requires_grad(true);

  const auto [query, key, value] = norms.split_and_rotate_heads(x, shape, table);
  const double offset = gain == NormGain::kWeight ? 0 : 1;
  const auto expected = compute_reference(double_x, shape, {weights[0] + offset, weights[1] + offset}, table);
  const std::vector<at::Tensor> actual{query, key, value};
  std::vector<at::Tensor> directions, double_directions;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT(parity::relative_difference(actual[i], expected[i]), 1e-6) << i;
    directions.push_back(at::randn(actual[i].sizes()));
    double_directions.push_back(directions.back().to(at::kDouble));
  }
  const auto gradients = torch::autograd::grad(actual, {x, store.all()[0].tensor, store.all()[1].tensor}, directions);
  const auto expected_grads = torch::autograd::grad(expected, {double_x, weights[0], weights[1]}, double_directions);
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_LT(parity::relative_difference(gradients[i], expected_grads[i]), 2e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, QkNormTest,
                         testing::Values(QkNormCase{NormGain::kWeight, 1, true},
                                         QkNormCase{NormGain::kOnePlusWeight, 1, true},
                                         QkNormCase{NormGain::kWeight, 2, true},
                                         QkNormCase{NormGain::kWeight, 1, false}));

TEST(RmsNorm, WithoutWeightMatchesTheFormulaAndItsGradient) {
  at::manual_seed(5);
  const auto heads = at::randn({kTokens, 3, kHeadFeatures}), direction = at::randn({kTokens, 2, kHeadFeatures});
  const auto x = heads.narrow(1, 1, 2).set_requires_grad(true);  // not contiguous
  const auto double_x = x.detach().to(at::kDouble).set_requires_grad(true);
  const auto actual = rms_norm_without_weight(x, kNormEpsilon);
  const auto expected = double_x * (double_x.pow(2).mean(-1, true) + kNormEpsilon).rsqrt();
  EXPECT_LT(parity::relative_difference(actual, expected), 1e-6);
  const auto gradient = torch::autograd::grad({actual}, {x}, {direction})[0];
  const auto expected_gradient = torch::autograd::grad({expected}, {double_x}, {direction.to(at::kDouble)})[0];
  EXPECT_LT(parity::relative_difference(gradient, expected_gradient), 2e-6);
}

TEST(QkNorm, RoundsLikeTransformers) {
  // Qwen3RMSNorm rounds the normalized value to 16 bits, then its product with the weight.
  at::manual_seed(4);
  ParameterStore store{at::TensorOptions().dtype(at::kBFloat16)};
  const QkNorm norms(ParameterScope(store, Component::kLanguageModel, "attention"), kHeadFeatures, kNormEpsilon);
  for (const auto& parameter : store.all()) parameter.tensor.detach().uniform_(0.5, 1.5);
  const auto identity_rotation =
      RotaryTable::from_positions(at::zeros({kTokens}, at::kLong), compute_inv_freq(kHeadFeatures, 100.0));
  const auto x =
      at::randn({kTokens, (kShape.num_heads + 2 * kShape.num_key_value_heads) * kHeadFeatures}).to(at::kBFloat16);
  const auto query = norms.split_and_rotate_heads(x, kShape, identity_rotation).query;
  const auto double_x = x.view({kTokens, -1, kHeadFeatures}).narrow(1, 0, kShape.num_heads).to(at::kFloat);
  const auto normed = (double_x * (double_x.pow(2).mean(-1, true) + kNormEpsilon).rsqrt()).to(at::kBFloat16);
  const auto expected = normed * store.all()[0].tensor.detach();
  // The mean of squares is summed in another order, which changes few values by a bit.
  EXPECT_LT((query != expected).to(at::kFloat).mean().item<double>(), 0.02);
  EXPECT_LT(parity::relative_difference(query, expected), 1e-3);
}

}  // namespace
}  // namespace vlmtrain::nn

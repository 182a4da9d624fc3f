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
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kTokens = 7, kHeadFeatures = 6;
constexpr HeadShape kShape{.num_heads = 4, .num_key_value_heads = 2, .head_dim = kHeadFeatures};
constexpr double kNormEpsilon = 1e-5;

/// Norm and rotation by their formulas, with ordinary autograd.
std::vector<at::Tensor> compute_reference(const at::Tensor& x, const std::array<at::Tensor, 2>& weights,
                                          const RotaryTable& table) {
  const auto heads = x.view({kTokens, -1, kHeadFeatures});
  const auto norm_and_rotate = [&](const at::Tensor& part, const at::Tensor& weight) {
    const auto normed = part * (part.pow(2).mean(-1, true) + kNormEpsilon).rsqrt() * weight;
    const auto first = normed.narrow(2, 0, kHeadFeatures / 2),
               second = normed.narrow(2, kHeadFeatures / 2, kHeadFeatures / 2);
    return at::cat({first * table.cos - second * table.sin, second * table.cos + first * table.sin}, 2);
  };
  return {norm_and_rotate(heads.narrow(1, 0, kShape.num_heads), weights[0]),
          norm_and_rotate(heads.narrow(1, kShape.num_heads, kShape.num_key_value_heads), weights[1]),
          heads.narrow(1, kShape.num_heads + kShape.num_key_value_heads, kShape.num_key_value_heads)};
}

class QkNormTest : public testing::TestWithParam<NormGain> {};

TEST_P(QkNormTest, MatchesTheFormulaAndItsGradients) {
  at::manual_seed(3);
  ParameterStore store{at::TensorOptions()};
  const QkNorm norms(ParameterScope(store, Component::kLanguageModel, "attention"), kHeadFeatures, kNormEpsilon,
                     GetParam());
  ASSERT_EQ(store.all()[0].name, "attention.q_norm.weight");
  ASSERT_EQ(store.all()[1].name, "attention.k_norm.weight");
  std::array<at::Tensor, 2> weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& norm_weight = store.all()[i].tensor;
    norm_weight.detach().uniform_(0.5, 1.5);
    weights[i] = norm_weight.detach().to(at::kDouble).set_requires_grad(true);
  }
  const auto positions = at::tensor({0, 1, 2, 3, 0, 1, 9}, at::kLong);
  const auto table = RotaryTable::from_positions(positions, compute_inv_freq(kHeadFeatures, 100.0));
  const auto x =
      at::randn({kTokens, (kShape.num_heads + 2 * kShape.num_key_value_heads) * kHeadFeatures}).set_requires_grad(true);
  const auto double_x = x.detach().to(at::kDouble).set_requires_grad(true);

  const auto [query, key, value] = norms.split_and_rotate_heads(x, kShape, table);
  const double offset = GetParam() == NormGain::kWeight ? 0 : 1;
  const auto expected = compute_reference(double_x, {weights[0] + offset, weights[1] + offset}, table);
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

INSTANTIATE_TEST_SUITE_P(Gains, QkNormTest, testing::Values(NormGain::kWeight, NormGain::kOnePlusWeight));

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

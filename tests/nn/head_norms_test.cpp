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
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kTokens = 7, kHeadFeatures = 6;
constexpr HeadShape kShape{.query = 4, .key_value = 2, .features = kHeadFeatures};
constexpr double kNormEpsilon = 1e-5;

/// Norm and rotation by their formulas, with ordinary autograd.
std::vector<at::Tensor> by_formula(const at::Tensor& x, const std::array<at::Tensor, 2>& weights,
                                   const RotaryTable& table) {
  const auto heads = x.view({kTokens, -1, kHeadFeatures});
  const auto turned = [&](const at::Tensor& part, const at::Tensor& weight) {
    const auto normed = part * (part.pow(2).mean(-1, true) + kNormEpsilon).rsqrt() * weight;
    const auto first = normed.narrow(2, 0, kHeadFeatures / 2),
               second = normed.narrow(2, kHeadFeatures / 2, kHeadFeatures / 2);
    return at::cat({first * table.cos - second * table.sin, second * table.cos + first * table.sin}, 2);
  };
  return {turned(heads.narrow(1, 0, kShape.query), weights[0]),
          turned(heads.narrow(1, kShape.query, kShape.key_value), weights[1]),
          heads.narrow(1, kShape.query + kShape.key_value, kShape.key_value)};
}

class HeadNormsTest : public testing::TestWithParam<NormGain> {};

TEST_P(HeadNormsTest, EqualTheirFormulaAndItsGradients) {
  at::manual_seed(3);
  ParameterStore store{at::TensorOptions()};
  const HeadNorms norms(ParameterScope(store, Component::kLanguageModel, "attention"), kHeadFeatures, kNormEpsilon,
                        GetParam());
  ASSERT_EQ(store.all()[0].name, "attention.q_norm.weight");
  ASSERT_EQ(store.all()[1].name, "attention.k_norm.weight");
  std::array<at::Tensor, 2> weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& own = store.all()[i].tensor;
    own.detach().uniform_(0.5, 1.5);
    weights[i] = own.detach().to(at::kDouble).set_requires_grad(true);
  }
  const auto positions = at::tensor({0, 1, 2, 3, 0, 1, 9}, at::kLong);
  const auto table = RotaryTable::of(positions, rotary_frequencies(kHeadFeatures, 100.0));
  const auto x = at::randn({kTokens, (kShape.query + 2 * kShape.key_value) * kHeadFeatures}).set_requires_grad(true);
  const auto wide = x.detach().to(at::kDouble).set_requires_grad(true);

  const auto [query, key, value] = norms.rotated_heads(x, kShape, table);
  const double offset = GetParam() == NormGain::kWeight ? 0 : 1;
  const auto wanted = by_formula(wide, {weights[0] + offset, weights[1] + offset}, table);
  const std::vector<at::Tensor> found{query, key, value};
  std::vector<at::Tensor> directions, wide_directions;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LT(parity::relative_difference(found[i], wanted[i]), 1e-6) << i;
    directions.push_back(at::randn(found[i].sizes()));
    wide_directions.push_back(directions.back().to(at::kDouble));
  }
  const auto gradients = torch::autograd::grad(found, {x, store.all()[0].tensor, store.all()[1].tensor}, directions);
  const auto exact = torch::autograd::grad(wanted, {wide, weights[0], weights[1]}, wide_directions);
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_LT(parity::relative_difference(gradients[i], exact[i]), 2e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Gains, HeadNormsTest, testing::Values(NormGain::kWeight, NormGain::kOnePlusWeight));

TEST(HeadNorms, RoundAsTransformersDoes) {
  // Qwen3RMSNorm: the normed value is rounded to 16 bits, then its product with the weight.
  at::manual_seed(4);
  ParameterStore store{at::TensorOptions().dtype(at::kBFloat16)};
  const HeadNorms norms(ParameterScope(store, Component::kLanguageModel, "attention"), kHeadFeatures, kNormEpsilon);
  for (const auto& parameter : store.all()) parameter.tensor.detach().uniform_(0.5, 1.5);
  const auto still = RotaryTable::of(at::zeros({kTokens}, at::kLong), rotary_frequencies(kHeadFeatures, 100.0));
  const auto x = at::randn({kTokens, (kShape.query + 2 * kShape.key_value) * kHeadFeatures}).to(at::kBFloat16);
  const auto query = norms.rotated_heads(x, kShape, still).query;
  const auto wide = x.view({kTokens, -1, kHeadFeatures}).narrow(1, 0, kShape.query).to(at::kFloat);
  const auto normed = (wide * (wide.pow(2).mean(-1, true) + kNormEpsilon).rsqrt()).to(at::kBFloat16);
  const auto wanted = normed * store.all()[0].tensor.detach();
  // The mean of squares is summed in another order, which moves few values by a bit.
  EXPECT_LT((query != wanted).to(at::kFloat).mean().item<double>(), 0.02);
  EXPECT_LT(parity::relative_difference(query, wanted), 1e-3);
}

}  // namespace
}  // namespace vlmtrain::nn

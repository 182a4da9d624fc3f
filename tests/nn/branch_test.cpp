#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <variant>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

constexpr int64_t kStreamRows = 9, kStreamFeatures = 16;

enum class NormType : uint8_t { kLayer, kRms, kOnePlus };

/// Linears after a norm of a stream, in fp32. Either the weights of the norm are trained, or only
/// adapters.
class BranchTest : public testing::TestWithParam<std::tuple<NormType, bool>> {
 protected:
  BranchTest() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().normal_();
    x_ = at::randn({kStreamRows, kStreamFeatures}).set_requires_grad(true);
    value_gradient_ = at::randn({kStreamRows, 12});
    stream_gradient_ = at::randn({kStreamRows, kStreamFeatures});
  }

  LinearInput make_norm_input(const at::Tensor& x) const {
    return std::visit([&](const auto& norm) { return norm.make_linear_input(x); }, norm_);
  }

  /// Returns the gradients of x and of trained tensors, for a loss of these results.
  std::vector<at::Tensor> gradients(const at::Tensor& loss) const {
    std::vector<at::Tensor> inputs{x_};
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) inputs.push_back(parameter.tensor);
    }
    return torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  }

  /// Bit-exact, or within fp32 rounding where custom kernels round once and ATen twice.
  static void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.defined(), expected.defined());
    if (!actual.defined()) return;
    if (kernels::is_available(kernels::Kernel::kNorm, actual)) {
      EXPECT_LT(relative_difference(actual, expected), 1e-6);
    } else {
      EXPECT_TRUE(at::equal(actual, expected));
    }
  }

  void expect_same_gradients(const at::Tensor& loss, const at::Tensor& expected_loss) const {
    const auto actual = gradients(loss), expected = gradients(expected_loss);
    for (size_t i = 0; i < actual.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(actual[i], expected[i]);
    }
  }

  ParameterStore store_{
      ParameterSettings{at::TensorOptions(at::kFloat),
                        std::get<1>(GetParam())
                            ? std::optional(LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "v_proj"}})
                            : std::nullopt}};
  std::variant<LayerNorm, RmsNorm> norm_ = [&]() -> std::variant<LayerNorm, RmsNorm> {
    const ParameterScope scope(store_, Component::kLanguageModel, "norm");
    const NormType type = std::get<0>(GetParam());
    if (type == NormType::kLayer) return LayerNorm(scope, kStreamFeatures, 1e-5);
    return RmsNorm(scope, kStreamFeatures, 1e-5, type == NormType::kRms ? NormGain::kWeight : NormGain::kOnePlusWeight);
  }();
  MergedLinear linears_{
      ParameterScope(store_, Component::kLanguageModel, "at"), {"q_proj", "v_proj"}, kStreamFeatures, {8, 4}, true};
  at::Tensor x_, value_gradient_, stream_gradient_;
};

TEST_P(BranchTest, HasTheGradientsOfBothOutputs) {
  const auto [value, stream] = linears_.forward_branch(make_norm_input(x_));
  expect_same(value, linears_(make_norm_input(x_)));
  EXPECT_TRUE(at::equal(stream, x_));
  EXPECT_EQ(stream.data_ptr(), x_.data_ptr());  // no copy
  expect_same_gradients((value * value_gradient_).sum() + (stream * stream_gradient_).sum(),
                        (linears_(make_norm_input(x_)) * value_gradient_).sum() + (x_ * stream_gradient_).sum());
}

TEST_P(BranchTest, EitherOutputMayBeUnused) {
  expect_same_gradients((linears_.forward_branch(make_norm_input(x_)).value * value_gradient_).sum(),
                        (linears_(make_norm_input(x_)) * value_gradient_).sum());
  expect_same_gradients((linears_.forward_branch(make_norm_input(x_)).stream * stream_gradient_).sum(),
                        (x_ * stream_gradient_).sum());
}

TEST_P(BranchTest, LinearGradientsNeedNoStreamGradient) {
  std::vector<at::Tensor> inputs;
  for (const auto& parameter : store_.all()) {
    if (parameter.name.starts_with("at.") && parameter.tensor.requires_grad()) inputs.push_back(parameter.tensor);
  }
  const auto [value, stream] = linears_.forward_branch(make_norm_input(x_));
  const auto actual =
      torch::autograd::grad({(value * value_gradient_).sum() + (stream * stream_gradient_).sum()}, inputs);
  const auto expected = torch::autograd::grad({(linears_(make_norm_input(x_)) * value_gradient_).sum()}, inputs);
  for (size_t i = 0; i < actual.size(); ++i) expect_same(actual[i], expected[i]);
}

TEST_P(BranchTest, StreamWithoutGradientIsUnchanged) {
  const at::Tensor x = x_.detach();
  EXPECT_TRUE(linears_.forward_branch(make_norm_input(x)).stream.is_same(x));
}

TEST_P(BranchTest, NormIsAddedToAResidual) {
  const at::Tensor residual = at::randn_like(x_).set_requires_grad(true);
  const at::Tensor sum = make_norm_input(x_).add_residual(residual), expected = residual + make_norm_input(x_).value();
  expect_same(sum, expected);
  expect_same_gradients((sum * stream_gradient_).sum(), (expected * stream_gradient_).sum());
  EXPECT_TRUE(at::equal(
      torch::autograd::grad({(make_norm_input(x_).add_residual(residual) * stream_gradient_).sum()}, {residual})[0],
      stream_gradient_));
}

INSTANTIATE_TEST_SUITE_P(Norms, BranchTest,
                         testing::Combine(testing::Values(NormType::kLayer, NormType::kRms, NormType::kOnePlus),
                                          testing::Bool()));

}  // namespace
}  // namespace vlmtrain::nn

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <variant>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

constexpr int64_t kStreamRows = 9, kStreamFeatures = 16;

enum class NormKind : uint8_t { kLayer, kRms, kOnePlus };

/// Linears behind a norm of a stream, in fp32; the norm's weights are trained, or all but adapters is frozen.
class BranchTest : public testing::TestWithParam<std::tuple<NormKind, bool>> {
 protected:
  BranchTest() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().normal_();
    x_ = at::randn({kStreamRows, kStreamFeatures}).set_requires_grad(true);
    of_value_ = at::randn({kStreamRows, 12});
    of_stream_ = at::randn({kStreamRows, kStreamFeatures});
  }

  Operand normed(const at::Tensor& x) const {
    return std::visit([&](const auto& norm) { return norm.before_linears(x); }, norm_);
  }

  /// Of x and of what is trained, for a loss of these.
  std::vector<at::Tensor> gradients(const at::Tensor& loss) const {
    std::vector<at::Tensor> of{x_};
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) of.push_back(parameter.tensor);
    }
    return torch::autograd::grad({loss}, of, {}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  }

  /// Equal, or, where own kernels round once and ATen twice, as close as fp32 can tell.
  static void expect_same(const at::Tensor& found, const at::Tensor& wanted) {
    ASSERT_EQ(found.defined(), wanted.defined());
    if (!found.defined()) return;
    if (kernels::has(kernels::Kernel::kNorm, found)) {
      EXPECT_LT(relative_difference(found, wanted), 1e-6);
    } else {
      EXPECT_TRUE(at::equal(found, wanted));
    }
  }

  void expect_same_gradients(const at::Tensor& loss, const at::Tensor& wanted_loss) const {
    const auto found = gradients(loss), wanted = gradients(wanted_loss);
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(found[i], wanted[i]);
    }
  }

  ParameterStore store_{
      ParameterSettings{at::TensorOptions(at::kFloat),
                        std::get<1>(GetParam())
                            ? std::optional(LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "v_proj"}})
                            : std::nullopt}};
  std::variant<LayerNorm, RmsNorm> norm_ = [&]() -> std::variant<LayerNorm, RmsNorm> {
    const ParameterScope scope(store_, Component::kLanguageModel, "norm");
    const NormKind kind = std::get<0>(GetParam());
    if (kind == NormKind::kLayer) return LayerNorm(scope, kStreamFeatures, 1e-5);
    return RmsNorm(scope, kStreamFeatures, 1e-5, kind == NormKind::kRms ? NormGain::kWeight : NormGain::kOnePlusWeight);
  }();
  Linears linears_{
      ParameterScope(store_, Component::kLanguageModel, "at"), {"q_proj", "v_proj"}, kStreamFeatures, {8, 4}, true};
  at::Tensor x_, of_value_, of_stream_;
};

TEST_P(BranchTest, HasTheGradientsOfBothWaysOn) {
  const auto [value, stream] = linears_.branch(normed(x_));
  expect_same(value, linears_(normed(x_)));
  EXPECT_TRUE(at::equal(stream, x_));
  EXPECT_EQ(stream.data_ptr(), x_.data_ptr());  // nothing is copied
  expect_same_gradients((value * of_value_).sum() + (stream * of_stream_).sum(),
                        (linears_(normed(x_)) * of_value_).sum() + (x_ * of_stream_).sum());
}

TEST_P(BranchTest, EitherWayMayEnd) {
  expect_same_gradients((linears_.branch(normed(x_)).value * of_value_).sum(),
                        (linears_(normed(x_)) * of_value_).sum());
  expect_same_gradients((linears_.branch(normed(x_)).stream * of_stream_).sum(), (x_ * of_stream_).sum());
}

TEST_P(BranchTest, GradientsOfTheLinearsAloneNeedNoneOfTheStream) {
  std::vector<at::Tensor> of;
  for (const auto& parameter : store_.all()) {
    if (parameter.name.starts_with("at.") && parameter.tensor.requires_grad()) of.push_back(parameter.tensor);
  }
  const auto [value, stream] = linears_.branch(normed(x_));
  const auto found = torch::autograd::grad({(value * of_value_).sum() + (stream * of_stream_).sum()}, of);
  const auto wanted = torch::autograd::grad({(linears_(normed(x_)) * of_value_).sum()}, of);
  for (size_t i = 0; i < found.size(); ++i) expect_same(found[i], wanted[i]);
}

TEST_P(BranchTest, WhatNeedsNoGradientGoesOnAsItIs) {
  const at::Tensor x = x_.detach();
  EXPECT_TRUE(linears_.branch(normed(x)).stream.is_same(x));
}

TEST_P(BranchTest, ANormIsAddedToAResidual) {
  const at::Tensor residual = at::randn_like(x_).set_requires_grad(true);
  const at::Tensor sum = normed(x_).added_to(residual), wanted = residual + normed(x_).value();
  expect_same(sum, wanted);
  expect_same_gradients((sum * of_stream_).sum(), (wanted * of_stream_).sum());
  EXPECT_TRUE(at::equal(torch::autograd::grad({(normed(x_).added_to(residual) * of_stream_).sum()}, {residual})[0],
                        of_stream_));
}

INSTANTIATE_TEST_SUITE_P(Norms, BranchTest,
                         testing::Combine(testing::Values(NormKind::kLayer, NormKind::kRms, NormKind::kOnePlus),
                                          testing::Bool()));

}  // namespace
}  // namespace vlmtrain::nn

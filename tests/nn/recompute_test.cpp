#include "vlmtrain/nn/recompute.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

struct Context {
  at::Tensor scale;
};

class RecomputeCapture : public testing::Test {
 protected:
  void backward(const std::function<at::Tensor(const at::Tensor&)>& block) const {
    torch::autograd::backward({recompute(block, x_, {w_}).sum()}, {});
  }

  void expect_refused(const std::function<at::Tensor(const at::Tensor&)>& block, const std::string& what) const {
    EXPECT_THAT([&] { backward(block); }, ThrowsMessage<InternalError>(HasSubstr("the block reads " + what)));
  }

  at::Tensor x_ = leaf({3, 4}), w_ = leaf({4}), other_ = leaf({1, 4});
};

TEST_F(RecomputeCapture, LeafIsRefused) {
  expect_refused([this](const at::Tensor& x) { return (x * w_ + other_).tanh(); }, "a tensor [1, 4]");
}

TEST_F(RecomputeCapture, ResultIsRefusedInAContextToo) {
  const Context context{other_ * 2};
  expect_refused([this, context](const at::Tensor& x) { return x * w_ * context.scale; }, "a result of MulBackward1");
  const Context of_parameter{w_.exp()};
  expect_refused([this, of_parameter](const at::Tensor& x) { return x * w_ * of_parameter.scale; },
                 "a result of ExpBackward0");
}

TEST_F(RecomputeCapture, InputBesideTheArgumentIsRefused) {
  const at::Tensor input = x_ * 3;
  EXPECT_THAT(
      [&] {
        const auto output = recompute([&](const at::Tensor& x) { return x * w_ + input; }, input, {w_});
        torch::autograd::backward({output.sum()}, {});
      },
      ThrowsMessage<InternalError>(HasSubstr("a result of MulBackward1")));
}

TEST_F(RecomputeCapture, IsRefusedAtOnceWhereNothingElseRequiresGradients) {
  const auto block = [this](const at::Tensor& x) { return x * other_; };
  EXPECT_THAT([&] { recompute(block, x_.detach(), {w_.detach()}); },
              ThrowsMessage<InternalError>(HasSubstr("requires gradients")));
}

TEST_F(RecomputeCapture, ParameterThatIsAResultIsRefused) {
  const at::Tensor computed = w_ * 2;
  EXPECT_THROW(recompute([&](const at::Tensor& x) { return x * computed; }, x_, {computed}), InternalError);
}

TEST_F(RecomputeCapture, WhatNeedsNoGradientPasses) {
  const Context context{other_.detach() * 2};
  const auto block = [&](const at::Tensor& x) { return (x * w_).add_(context.scale).tanh() * w_; };
  const at::Tensor input = x_ * 3;
  const auto plain = torch::autograd::grad({block(input).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
  const auto again = torch::autograd::grad({recompute(block, input, {w_}).sum()}, {x_, w_});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(again[i], plain[i], 1e-6, 1e-6)) << i;

  const at::NoGradGuard evaluation;
  EXPECT_TRUE(at::equal(recompute(block, x_.detach(), {}), block(x_)));
}

}  // namespace
}  // namespace vlmtrain::nn

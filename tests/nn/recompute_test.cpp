#include "vlmtrain/nn/recompute.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/attention.h"
#include "vlmtrain/nn/segments.h"

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

/// How often the CPU's kernel of attention runs forward while it lives.
class CountAttention {
 public:
  CountAttention() {
    count_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) {
          count_ += std::string_view(function.name()) == "aten::_scaled_dot_product_flash_attention_for_cpu" ? 1 : 0;
          return std::unique_ptr<at::ObserverContext>();
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountAttention() { at::removeCallback(handle_); }
  CountAttention(const CountAttention&) = delete;
  CountAttention& operator=(const CountAttention&) = delete;

  int count() const { return count_; }

 private:
  at::CallbackHandle handle_;
  inline static thread_local int count_ = 0;
};

/// Two attentions one behind the other: over equal segments, and over some that are not.
class RecomputeKeepsAttention : public testing::Test {
 protected:
  static constexpr int64_t kRows = 12, kHeads = 4, kGroups = 2, kSize = 8;

  at::Tensor block(const at::Tensor& x) const {
    at::Tensor y = x;
    for (const Segments& segments : {equal_, unequal_}) {
      const at::Tensor all = at::mm(y, w_).view({kRows, -1, kSize});
      y = y + attention(all.narrow(1, 0, kHeads), all.narrow(1, kHeads, kGroups),
                        all.narrow(1, kHeads + kGroups, kGroups), segments, /*causal=*/true)
                  .reshape({kRows, -1});
    }
    return y;
  }

  const at::Tensor x_ = leaf({kRows, kHeads*kSize}), w_ = leaf({kHeads * kSize, (kHeads + 2 * kGroups) * kSize});
  const Segments equal_ = Segments::from_lengths({4, 4, 4}, at::kCPU),
                 unequal_ = Segments::from_lengths({2, 7, 3}, at::kCPU);
};

TEST_F(RecomputeKeepsAttention, WhichRunsOnceThenAndGivesTheSameBits) {
  const auto run = [this](const at::Tensor& x) { return block(x); };
  const at::Tensor input = x_ * 3;
  const auto plain = torch::autograd::grad({run(input).pow(2).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
  for (const auto& [keeps, times] : {std::pair{RecomputeKeeps::kInput, 2}, {RecomputeKeeps::kInputAndAttention, 1}}) {
    const CountAttention attention;
    const at::Tensor y = recompute(run, input, {w_}, keeps);
    EXPECT_EQ(attention.count(), 4);
    const auto again = torch::autograd::grad({y.pow(2).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
    EXPECT_EQ(attention.count(), 4 * times);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(again[i], plain[i])) << i;
  }
}

}  // namespace
}  // namespace vlmtrain::nn

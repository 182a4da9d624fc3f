#include "vlmtrain/nn/layers/recompute.h"

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
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor make_leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

struct Context {
  at::Tensor scale;
};

class RecomputeCapture : public testing::Test {
 protected:
  void backward(const std::function<at::Tensor(const at::Tensor&)>& block) const {
    torch::autograd::backward({run_checkpointed(block, x_, {w_}).sum()}, {});
  }

  void expect_rejected(const std::function<at::Tensor(const at::Tensor&)>& block, const std::string& message) const {
    EXPECT_THAT([&] { backward(block); }, ThrowsMessage<InternalError>(HasSubstr("the block reads " + message)));
  }

  at::Tensor x_ = make_leaf({3, 4}), w_ = make_leaf({4}), captured_ = make_leaf({1, 4});
};

TEST_F(RecomputeCapture, LeafIsRejected) {
  expect_rejected([this](const at::Tensor& x) { return (x * w_ + captured_).tanh(); }, "a tensor [1, 4]");
}

TEST_F(RecomputeCapture, ResultInAContextIsRejected) {
  const Context context{captured_ * 2};
  expect_rejected([this, context](const at::Tensor& x) { return x * w_ * context.scale; }, "a result of MulBackward1");
  const Context parameter_context{w_.exp()};
  expect_rejected([this, parameter_context](const at::Tensor& x) { return x * w_ * parameter_context.scale; },
                  "a result of ExpBackward0");
}

TEST_F(RecomputeCapture, CapturedInputIsRejected) {
  const at::Tensor input = x_ * 3;
  EXPECT_THAT(
      [&] {
        const auto output = run_checkpointed([&](const at::Tensor& x) { return x * w_ + input; }, input, {w_});
        torch::autograd::backward({output.sum()}, {});
      },
      ThrowsMessage<InternalError>(HasSubstr("a result of MulBackward1")));
}

TEST_F(RecomputeCapture, IsRejectedImmediatelyWithoutOtherGradients) {
  const auto block = [this](const at::Tensor& x) { return x * captured_; };
  EXPECT_THAT([&] { run_checkpointed(block, x_.detach(), {w_.detach()}); },
              ThrowsMessage<InternalError>(HasSubstr("requires gradients")));
}

TEST_F(RecomputeCapture, NonLeafParameterIsRejected) {
  const at::Tensor derived = w_ * 2;
  EXPECT_THROW(run_checkpointed([&](const at::Tensor& x) { return x * derived; }, x_, {derived}), InternalError);
}

TEST_F(RecomputeCapture, TensorsWithoutGradientsAreAccepted) {
  const Context context{captured_.detach() * 2};
  const auto block = [&](const at::Tensor& x) { return (x * w_).add_(context.scale).tanh() * w_; };
  const at::Tensor input = x_ * 3;
  const auto plain_grads = torch::autograd::grad({block(input).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
  const auto recomputed_grads = torch::autograd::grad({run_checkpointed(block, input, {w_}).sum()}, {x_, w_});
  for (size_t i = 0; i < plain_grads.size(); ++i)
    EXPECT_TRUE(at::allclose(recomputed_grads[i], plain_grads[i], 1e-6, 1e-6)) << i;

  const at::NoGradGuard evaluation;
  EXPECT_TRUE(at::equal(run_checkpointed(block, x_.detach(), {}), block(x_)));
}

/// Three blocks: the second and third read keys that the first one computes, and features of their own.
class RecomputeExchange : public testing::Test {
 protected:
  using Tensors = std::vector<at::Tensor>;

  /// Returns the gradients of all weights and of the features. `num_recomputed`: the first blocks are recomputed.
  Tensors compute_gradients(int num_recomputed, bool first_is_frozen = false) const {
    const auto run = [&](int block, const BlockFunction& function, const Tensors& inputs, const Tensors& parameters) {
      return block < num_recomputed ? run_checkpointed(function, inputs, parameters) : function(inputs);
    };
    const at::Tensor first_weight = first_is_frozen ? weights_[0].detach() : weights_[0];
    const auto write_keys = [&](const Tensors& inputs) {
      return Tensors{(inputs[0] * first_weight).tanh(), inputs[0] * weights_[1], inputs[0].detach() * 2};
    };
    const auto read_keys = [](const at::Tensor& weight) {
      return BlockFunction([weight](const Tensors& inputs) {
        return Tensors{(inputs[0] * weight + inputs[1]).tanh() * inputs[2] + inputs[3]};
      });
    };
    const Tensors first = run(0, write_keys, {x_}, {first_weight, weights_[1]});
    const Tensors second = run(1, read_keys(weights_[2]), {first[0], first[1], features_[0], first[2]}, {weights_[2]});
    const Tensors third = run(2, read_keys(weights_[3]), {second[0], first[1], features_[1], first[2]}, {weights_[3]});
    Tensors leaves{x_, weights_[1], weights_[2], weights_[3], features_[0], features_[1]};
    if (!first_is_frozen) leaves.push_back(weights_[0]);
    return torch::autograd::grad({third[0].sum()}, leaves);
  }

  at::Tensor x_ = make_leaf({3, 4});
  Tensors weights_{make_leaf({4}), make_leaf({4}), make_leaf({4}), make_leaf({4})};
  Tensors features_{make_leaf({3, 4}), make_leaf({3, 4})};
};

TEST_F(RecomputeExchange, GradientsAreEqual) {
  for (const bool first_is_frozen : {false, true}) {
    const Tensors expected = compute_gradients(0, first_is_frozen);
    for (const int num_recomputed : {1, 2, 3}) {
      const Tensors actual = compute_gradients(num_recomputed, first_is_frozen);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(actual[i], expected[i])) << "tensor " << i << ", " << num_recomputed << " blocks";
    }
  }
}

TEST_F(RecomputeExchange, OutputsThatNothingReadsHaveNoGradient) {
  const auto block = [&](const Tensors& inputs) { return Tensors{inputs[0] * weights_[0], inputs[0] * weights_[1]}; };
  const Tensors outputs = run_checkpointed(block, {x_}, {weights_[0], weights_[1]});
  const Tensors gradients = torch::autograd::grad({outputs[0].sum()}, {weights_[0], weights_[1]}, {},
                                                  /*retain_graph=*/false, /*create_graph=*/false,
                                                  /*allow_unused=*/true);
  EXPECT_TRUE(gradients[0].defined());
  EXPECT_FALSE(gradients[1].defined());
}

TEST_F(RecomputeExchange, CapturedKeysAreRejected) {
  const at::Tensor keys = x_ * 2;
  const auto block = [&](const Tensors& inputs) { return Tensors{inputs[0] * weights_[0], inputs[0] * keys}; };
  const Tensors outputs = run_checkpointed(block, {x_}, {weights_[0]});
  EXPECT_THAT([&] { torch::autograd::backward({(outputs[0] + outputs[1]).sum()}, {}); },
              ThrowsMessage<InternalError>(HasSubstr("a result of MulBackward1")));
}

/// A counter of forward runs of the CPU's attention kernel during its lifetime.
class AttentionCounter {
 public:
  AttentionCounter() {
    count_ = 0;
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) {
          count_ += std::string_view(function.name()) == "aten::_scaled_dot_product_flash_attention_for_cpu" ? 1 : 0;
          return std::unique_ptr<at::ObserverContext>();
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~AttentionCounter() { at::removeCallback(callback_); }
  AttentionCounter(const AttentionCounter&) = delete;
  AttentionCounter& operator=(const AttentionCounter&) = delete;

  int count() const { return count_; }

 private:
  at::CallbackHandle callback_;
  inline static thread_local int count_ = 0;
};

/// Two attentions in a row, over segments of equal and of different lengths.
class SelectiveCheckpointTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 12, kHeads = 4, kGroups = 2, kHeadDim = 8;

  at::Tensor block(const at::Tensor& x) const {
    at::Tensor y = x;
    for (const Segments& segments : {equal_, unequal_}) {
      const at::Tensor all = at::mm(y, w_).view({kRows, -1, kHeadDim});
      y = y + attention(all.narrow(1, 0, kHeads), all.narrow(1, kHeads, kGroups),
                        all.narrow(1, kHeads + kGroups, kGroups), segments, /*is_causal=*/true)
                  .reshape({kRows, -1});
    }
    return y;
  }

  const at::Tensor x_ = make_leaf({kRows, kHeads*kHeadDim}),
                   w_ = make_leaf({kHeads * kHeadDim, (kHeads + 2 * kGroups) * kHeadDim});
  const Segments equal_ = Segments::from_lengths({4, 4, 4}, at::kCPU),
                 unequal_ = Segments::from_lengths({2, 7, 3}, at::kCPU);
};

TEST_F(SelectiveCheckpointTest, RunsAttentionOnceAndIsBitExact) {
  const auto run_block = [this](const at::Tensor& x) { return block(x); };
  const at::Tensor input = x_ * 3;
  const auto plain_grads = torch::autograd::grad({run_block(input).pow(2).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
  for (const auto& [mode, num_runs] : {std::pair{CheckpointMode::kFull, 2}, {CheckpointMode::kSelective, 1}}) {
    const AttentionCounter attention;
    const at::Tensor y = run_checkpointed(run_block, input, {w_}, mode);
    EXPECT_EQ(attention.count(), 4);
    const auto recomputed_grads = torch::autograd::grad({y.pow(2).sum()}, {x_, w_}, {}, /*retain_graph=*/true);
    EXPECT_EQ(attention.count(), 4 * num_runs);
    for (size_t i = 0; i < plain_grads.size(); ++i) EXPECT_TRUE(at::equal(recomputed_grads[i], plain_grads[i])) << i;
  }
}

}  // namespace
}  // namespace vlmtrain::nn

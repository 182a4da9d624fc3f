#include "models/network/block_list.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "vlmtrain/nn/linear.h"

namespace vlmtrain::models {
namespace {

constexpr int64_t kBlocks = 4, kRows = 5, kWidth = 6;

/// x + tanh(Linear(x)) · scale
struct SmallBlock {
  SmallBlock(const nn::ParameterScope& scope, int64_t width) : linear(scope / "linear", width, width, true) {}
  at::Tensor operator()(const at::Tensor& x, double scale) const { return x + linear(x).tanh() * scale; }
  nn::Linear linear;
};

/// Two features go behind block 0 and one behind block 2; the outputs of blocks 3, 0 and 2 are wanted.
class BlockListTest : public testing::Test {
 protected:
  BlockListTest() {
    const at::NoGradGuard initial_values;
    for (const auto& parameter : store_.all()) parameter.tensor.copy_(at::randn(parameter.tensor.sizes()));
  }

  BetweenBlocks between() const {
    return {.wanted = {3, 0, 2}, .additions = {{0, rows_, first_}, {2, rows_.narrow(0, 1, 1), second_}}};
  }

  /// The same without a BlockList.
  BlockOutputs plain() const {
    BlockOutputs outputs;
    std::vector<at::Tensor> states;
    at::Tensor hidden = input_;
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto& weight = store_.all()[static_cast<size_t>(2 * i)].tensor;
      const auto& bias = store_.all()[static_cast<size_t>(2 * i + 1)].tensor;
      hidden = hidden + nn::linear(hidden, weight, bias).tanh() * 0.5;
      states.push_back(hidden);
      if (i == 0) hidden = hidden.index_put({rows_}, hidden.index_select(0, rows_) + first_);
      if (i == 2)
        hidden = hidden.index_put({rows_.narrow(0, 1, 1)}, hidden.index_select(0, rows_.narrow(0, 1, 1)) + second_);
    }
    return {.last = hidden, .wanted = {states[3], states[0], states[2]}};
  }

  /// Of a loss that all outputs enter: of input, features and parameters.
  std::vector<at::Tensor> gradients(const BlockOutputs& outputs) const {
    at::Tensor loss = outputs.last.square().sum();
    for (const auto& state : outputs.wanted) loss = loss + state.sin().sum();
    std::vector<at::Tensor> of{input_, first_, second_};
    for (const auto& parameter : store_.all()) of.push_back(parameter.tensor);
    return torch::autograd::grad({loss}, of);
  }

  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  BlockList<SmallBlock> blocks_{
      {store_, nn::Component::kLanguageModel, "blocks"}, kBlocks, kWidth, memory::Component::kLanguage};
  at::Tensor input_ = at::randn({kRows, kWidth}).set_requires_grad(true);
  at::Tensor rows_ = at::tensor({4, 1}, at::kLong);
  at::Tensor first_ = at::randn({2, kWidth}).set_requires_grad(true);
  at::Tensor second_ = at::randn({1, kWidth}).set_requires_grad(true);
};

class Recomputed : public BlockListTest, public testing::WithParamInterface<int64_t> {};

TEST_P(Recomputed, StatesAndAdditionsAreThoseOfAPlainLoop) {
  const BlockOutputs expected = plain();
  const BlockOutputs found = blocks_.run(input_, GetParam(), 0.5, between());
  EXPECT_TRUE(at::equal(found.last, expected.last));
  ASSERT_EQ(found.wanted.size(), 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(found.wanted[i], expected.wanted[i])) << i;

  const auto wanted = gradients(expected), gotten = gradients(found);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(at::allclose(gotten[i], wanted[i], 1e-6, 1e-6)) << i;
}

TEST_P(Recomputed, WithoutARequestOnlyTheLastComes) {
  const BlockOutputs found = blocks_.run(input_, GetParam(), 0.5);
  EXPECT_TRUE(found.wanted.empty());
  EXPECT_EQ(found.last.sizes(), input_.sizes());
}

INSTANTIATE_TEST_SUITE_P(BlockListTest, Recomputed, testing::Values(0, 2, kBlocks));

TEST_F(BlockListTest, BlockThatIsNotThereIsRefused) {
  EXPECT_THROW(blocks_.run(input_, 0, 0.5, {.wanted = {kBlocks}}), InternalError);
  EXPECT_THROW(blocks_.run(input_, 0, 0.5, {.additions = {{-1, rows_, first_}}}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::models

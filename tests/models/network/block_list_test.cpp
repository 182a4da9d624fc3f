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

#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::models {
namespace {

constexpr int64_t kBlocks = 4, kRows = 5, kWidth = 6;

/// Computes x + tanh(Linear(x)) · scale.
struct SmallBlock {
  SmallBlock(const nn::ParameterScope& scope, int64_t width) : linear(scope / "linear", width, width, true) {}
  at::Tensor operator()(const at::Tensor& x, double scale) const { return x + linear(x).tanh() * scale; }
  nn::Linear linear;
};

/// Two features are added after block 0 and one after block 2; the outputs of blocks 3, 0 and 2 are
/// requested.
class BlockListTest : public testing::Test {
 protected:
  BlockListTest() {
    const at::NoGradGuard make_initial_values;
    for (const auto& parameter : store_.all()) parameter.tensor.copy_(at::randn(parameter.tensor.sizes()));
  }

  HiddenStateOptions make_options() const {
    return {.output_block_indices = {3, 0, 2},
            .deepstack_additions = {{0, rows_, first_addition_}, {2, rows_.narrow(0, 1, 1), second_addition_}}};
  }

  /// Computes the same without a BlockList.
  BlockListOutputs run_plain_loop() const {
    BlockListOutputs outputs;
    std::vector<at::Tensor> states;
    at::Tensor hidden = input_;
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto& weight = store_.all()[static_cast<size_t>(2 * i)].tensor;
      const auto& bias = store_.all()[static_cast<size_t>(2 * i + 1)].tensor;
      hidden = hidden + nn::linear(hidden, weight, bias).tanh() * 0.5;
      states.push_back(hidden);
      if (i == 0) hidden = hidden.index_put({rows_}, hidden.index_select(0, rows_) + first_addition_);
      if (i == 2)
        hidden =
            hidden.index_put({rows_.narrow(0, 1, 1)}, hidden.index_select(0, rows_.narrow(0, 1, 1)) + second_addition_);
    }
    return {.last_hidden_state = hidden, .intermediate_hidden_states = {states[3], states[0], states[2]}};
  }

  /// Returns the gradients of input, features and parameters for a loss over all outputs.
  std::vector<at::Tensor> compute_gradients(const BlockListOutputs& outputs) const {
    at::Tensor loss = outputs.last_hidden_state.square().sum();
    for (const auto& state : outputs.intermediate_hidden_states) loss = loss + state.sin().sum();
    std::vector<at::Tensor> inputs{input_, first_addition_, second_addition_};
    for (const auto& parameter : store_.all()) inputs.push_back(parameter.tensor);
    return torch::autograd::grad({loss}, inputs);
  }

  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  BlockList<SmallBlock> blocks_{
      {store_, nn::Component::kLanguageModel, "blocks"}, kBlocks, kWidth, memory::Component::kLanguage};
  at::Tensor input_ = at::randn({kRows, kWidth}).set_requires_grad(true);
  at::Tensor rows_ = at::tensor({4, 1}, at::kLong);
  at::Tensor first_addition_ = at::randn({2, kWidth}).set_requires_grad(true);
  at::Tensor second_addition_ = at::randn({1, kWidth}).set_requires_grad(true);
};

class RecomputedBlockList : public BlockListTest, public testing::WithParamInterface<int64_t> {};

TEST_P(RecomputedBlockList, MatchesPlainLoop) {
  const BlockListOutputs expected = run_plain_loop();
  const BlockListOutputs actual = blocks_.run(input_, GetParam(), 0.5, make_options());
  EXPECT_TRUE(at::equal(actual.last_hidden_state, expected.last_hidden_state));
  ASSERT_EQ(actual.intermediate_hidden_states.size(), 3);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(actual.intermediate_hidden_states[i], expected.intermediate_hidden_states[i])) << i;

  const auto expected_gradients = compute_gradients(expected), actual_gradients = compute_gradients(actual);
  for (size_t i = 0; i < expected_gradients.size(); ++i)
    EXPECT_TRUE(at::allclose(actual_gradients[i], expected_gradients[i], 1e-6, 1e-6)) << i;
}

TEST_P(RecomputedBlockList, ReturnsOnlyLastStateByDefault) {
  const BlockListOutputs actual = blocks_.run(input_, GetParam(), 0.5);
  EXPECT_TRUE(actual.intermediate_hidden_states.empty());
  EXPECT_EQ(actual.last_hidden_state.sizes(), input_.sizes());
}

INSTANTIATE_TEST_SUITE_P(BlockListTest, RecomputedBlockList, testing::Values(0, 2, kBlocks));

TEST_F(BlockListTest, InvalidBlockIsRefused) {
  EXPECT_THROW(blocks_.run(input_, 0, 0.5, {.output_block_indices = {kBlocks}}), InternalError);
  EXPECT_THROW(blocks_.run(input_, 0, 0.5, {.deepstack_additions = {{-1, rows_, first_addition_}}}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::models

#include "vlmtrain/nn/generation_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kHeads = 4, kHeadDim = 16, kBlocks = 2;
const std::vector<int64_t> kPromptLengths{5, 1, 9};
constexpr int64_t kSteps = 12;

/// A whole sequence, prompt and answer.
struct TestSequence {
  int64_t prompt;
  at::Tensor query, key, value;

  TestSequence(int64_t prompt_length, int64_t key_value_heads)
      : prompt(prompt_length),
        query(at::randn({prompt + kSteps, kHeads, kHeadDim})),
        key(at::randn({prompt + kSteps, key_value_heads, kHeadDim})),
        value(at::randn({prompt + kSteps, key_value_heads, kHeadDim})) {}
};

class GenerationCacheTest : public testing::TestWithParam<std::tuple<int64_t, std::optional<int64_t>>> {};

TEST_P(GenerationCacheTest, EachRowMatchesAttentionOverTheWholeSequence) {
  const auto& [key_value_heads, window] = GetParam();
  // Each block has its own keys.
  std::array<std::vector<TestSequence>, kBlocks> blocks;
  std::array<std::vector<at::Tensor>, kBlocks> expected;
  std::vector<int64_t> capacities;
  for (const int64_t length : kPromptLengths) capacities.push_back(length + kSteps);
  for (size_t block = 0; block < kBlocks; ++block) {
    for (const int64_t length : kPromptLengths) {
      const auto& sequence = blocks[block].emplace_back(length, key_value_heads);
      const auto segments = Segments::uniform(1, length + kSteps, at::kCPU);
      expected[block].push_back(
          attention(sequence.query, sequence.key, sequence.value, segments, /*is_causal=*/true, window));
    }
  }

  GenerationCache cache(capacities, at::kCPU);
  std::vector<size_t> active{0, 1, 2};  // indices of the streams
  const auto run_pass = [&](int64_t step) {
    const auto select_rows = [&](const at::Tensor& x, int64_t prompt) {
      return step == 0 ? x.narrow(0, 0, prompt) : x.narrow(0, prompt + step - 1, 1);
    };
    std::vector<int64_t> lengths;
    for (const size_t i : active) lengths.push_back(step == 0 ? kPromptLengths[i] : 1);
    cache.begin_forward(Segments::from_lengths(lengths, at::kCPU), window);
    for (size_t block = 0; block < kBlocks; ++block) {
      std::vector<at::Tensor> query, key, value, expected_rows;
      for (const size_t i : active) {
        const TestSequence& sequence = blocks[block][i];
        query.push_back(select_rows(sequence.query, sequence.prompt));
        key.push_back(select_rows(sequence.key, sequence.prompt));
        value.push_back(select_rows(sequence.value, sequence.prompt));
        expected_rows.push_back(select_rows(expected[block][i], sequence.prompt));
      }
      const at::Tensor actual =
          cache.attention(static_cast<int64_t>(block), at::cat(query), at::cat(key), at::cat(value));
      EXPECT_LT((actual - at::cat(expected_rows)).abs().max().item<double>(), 1e-6) << "step " << step;
    }
  };
  for (int64_t step = 0; step <= kSteps; ++step) {
    run_pass(step);
    if (step == 4) {
      cache.batch_select_indices(std::vector<size_t>{0, 2});
      active = {0, 2};
    }
    if (step == 7) {
      cache.batch_select_indices(std::vector<size_t>{1});
      active = {2};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadsAndWindows, GenerationCacheTest,
                         testing::Combine(testing::Values(4, 2, 1),
                                          testing::Values(std::nullopt, std::optional<int64_t>(1), 3, 7, 100)));

TEST(GenerationCache, AppliesAWindowPerBlock) {
  at::manual_seed(2);
  constexpr int64_t kPrompt = 6;
  GenerationCache cache(std::vector<int64_t>{kPrompt + 1}, at::kCPU);
  const at::Tensor query = at::randn({kPrompt + 1, kHeads, kHeadDim}), key = at::randn({kPrompt + 1, 2, kHeadDim}),
                   value = at::randn({kPrompt + 1, 2, kHeadDim});
  cache.begin_forward(Segments::uniform(1, kPrompt, at::kCPU), std::nullopt);
  EXPECT_TRUE(cache.is_prefill());
  EXPECT_THROW(cache.attend(0, query.narrow(0, 0, 1), std::nullopt), InternalError);
  for (const int64_t block : {0, 1}) cache.write(block, key.narrow(0, 0, kPrompt), value.narrow(0, 0, kPrompt));
  cache.begin_forward(Segments::uniform(1, 1, at::kCPU), std::nullopt);
  EXPECT_FALSE(cache.is_prefill());
  for (const int64_t block : {0, 1}) {
    cache.write(block, key.narrow(0, kPrompt, 1), value.narrow(0, kPrompt, 1));
    const auto window = block == 0 ? std::nullopt : std::optional<int64_t>(3);
    const at::Tensor actual = cache.attend(block, query.narrow(0, kPrompt, 1), window);
    const at::Tensor expected =
        attention(query, key, value, Segments::uniform(1, kPrompt + 1, at::kCPU), /*is_causal=*/true, window);
    EXPECT_LT((actual - expected.narrow(0, kPrompt, 1)).abs().max().item<double>(), 1e-6) << block;
  }
}

TEST(GenerationCache, AllocatesForPromptsAndAnswersAtOnce) {
  GenerationCache cache(std::vector<int64_t>{4, 6}, at::kCPU);
  EXPECT_EQ(cache.bytes(), 0);
  cache.begin_forward(Segments::from_lengths({3, 6}, at::kCPU), std::nullopt);
  const at::Tensor rows = at::randn({9, 2, 8});
  cache.attention(0, at::randn({9, 4, 8}), rows, rows);
  EXPECT_EQ(cache.bytes(), 2 * 10 * 2 * 8 * 4);
  cache.batch_select_indices(std::vector<size_t>{0});
  cache.begin_forward(Segments::uniform(1, 1, at::kCPU), std::nullopt);
  EXPECT_THROW(cache.begin_forward(Segments::uniform(1, 1, at::kCPU), std::nullopt), InternalError) << "it is full";
}

TEST(GenerationCache, AcceptsOneRowPerStepAfterThePrompts) {
  GenerationCache cache(std::vector<int64_t>{8}, at::kCPU);
  cache.begin_forward(Segments::uniform(1, 2, at::kCPU), std::nullopt);
  EXPECT_THROW(cache.begin_forward(Segments::uniform(1, 2, at::kCPU), std::nullopt), InternalError);
}

}  // namespace
}  // namespace vlmtrain::nn

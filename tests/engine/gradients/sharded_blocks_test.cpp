#include "vlmtrain/engine/gradients/sharded_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "vlmtrain/engine/step/step.h"

namespace vlmtrain::engine {
namespace {

using testing::Each;
using testing::Le;

/// Rank 0 of two, where the other rank has zeros in its shards. Records how many blocks are
/// unsharded or pending at each gather.
class CountingConsensus : public Consensus {
 public:
  explicit CountingConsensus(const nn::ParameterStore& store) : store_(store) {}

  std::vector<std::string> all_gather_strings(std::string value) const override {
    const std::string other_message = value == "-" ? value : other_message_.value_or(value);
    return {value, other_message};
  }
  AllGatherHandle all_gather_into_tensor_async(const at::Tensor& all, const at::Tensor& value) const override {
    all.zero_();
    all.narrow(0, 0, value.numel()).copy_(value);
    const auto num_unsharded =
        std::ranges::count_if(store_.blocks(), [](const auto& block) { return block.sharded_block->is_unsharded(); });
    unsharded_before.push_back(num_unsharded);
    unsharded_or_pending.push_back(num_unsharded + ++num_pending_);
    return {};
  }
  void wait_for_all_gather(AllGatherHandle /*ticket*/) const override { --num_pending_; }
  void reduce_scatter_async(const at::Tensor& /*all*/) const override { ++num_reduce_scatters; }

  /// Makes the other rank take part in passes as if it needed these.
  void set_other_rank_message(std::string message) { other_message_ = std::move(message); }
  void clear() { num_reduce_scatters = 0, unsharded_before.clear(), unsharded_or_pending.clear(); }

  mutable int64_t num_reduce_scatters = 0;
  mutable std::vector<int64_t> unsharded_before,
      unsharded_or_pending;  // at each gather; the latter includes that gather

 private:
  const nn::ParameterStore& store_;
  std::optional<std::string> other_message_;
  mutable int64_t num_pending_ = 0;
};

class ShardedBlocksTest : public testing::Test {
 protected:
  void train(std::vector<size_t> samples) {
    consensus_.clear();
    std::vector<data::Sample> selected_samples;
    for (const size_t i : samples) selected_samples.push_back(samples_[i]);
    const CrossEntropyObjective objective(TaskSettings{});
    const StepInput input = make_step_input(objective, selected_samples);
    TrainingStep step(training_, input, consensus_);
    step.accumulate(SmallStep{.micro_batch_size = std::ssize(selected_samples)}.make_layout(*model_, selected_samples));
    training_.gradient_buckets.reset();
  }

  int64_t num_vision_blocks() const {
    return std::ranges::count_if(model_->parameters().blocks(), [this](const nn::BlockRange& block) {
      return model_->parameters().all()[block.first].component == nn::Component::kVisionTower;
    });
  }
  int64_t num_language_blocks() const { return std::ssize(model_->parameters().blocks()) - num_vision_blocks(); }
  int64_t num_gathers() const { return std::ssize(consensus_.unsharded_or_pending); }

  std::vector<data::Sample> samples_ = batch_of_eight();
  std::unique_ptr<models::VisionLanguageModel> model_ = [] {
    const auto folder = parity::Case("mixed_batch").checkpoint();
    auto model =
        models::build_model(folder, at::kCPU, at::kFloat, {}, nn::Quantization::kNone, {.rank = 0, .count = 2});
    models::load_weights(*model, folder);
    return model;
  }();
  TrainingState training_{*model_, OptimizerSettings{}, 1, {.rank = 0, .count = 2}};
  CountingConsensus consensus_{model_->parameters()};

  void SetUp() override { training_.set_consensus(consensus_); }
};

constexpr size_t kTextOnly = 0, kWithImage = 2;

TEST_F(ShardedBlocksTest, UnshardsAtMostTwoBlocksAndPrefetchesTheNext) {
  train({kWithImage});
  EXPECT_THAT(consensus_.unsharded_or_pending, Each(Le(2)));
  EXPECT_EQ(std::ranges::count(consensus_.unsharded_before, 0), 1)
      << "none is there before the pass, one at each other gather";
  EXPECT_EQ(num_gathers(), 2 * (num_vision_blocks() + num_language_blocks()) - 1)
      << "the last one stays for the backward pass";
}

TEST_F(ShardedBlocksTest, TextOnlyPassSkipsTheTower) {
  train({kTextOnly});
  EXPECT_EQ(num_gathers(), 2 * num_language_blocks() - 1);
}

TEST_F(ShardedBlocksTest, RankWithoutImagesJoinsPassesOfOthers) {
  train({kWithImage});
  const int64_t expected = num_gathers(), num_reduce_scatters = consensus_.num_reduce_scatters;
  consensus_.set_other_rank_message("tb1");
  train({kTextOnly});
  EXPECT_EQ(num_gathers(), expected);
  EXPECT_EQ(consensus_.num_reduce_scatters, num_reduce_scatters);
  EXPECT_THAT(consensus_.unsharded_or_pending, Each(Le(2)));
  consensus_.set_other_rank_message("tb2");
  train({kWithImage});
  EXPECT_EQ(num_gathers(), expected + 2 * num_vision_blocks()) << "the tower once more, forward and backward";
  EXPECT_EQ(consensus_.num_reduce_scatters, num_reduce_scatters) << "what both passes learn is added up once";
}

}  // namespace
}  // namespace vlmtrain::engine

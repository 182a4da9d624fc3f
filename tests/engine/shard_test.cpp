#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "engine/small_parameters.h"
#include "vlmtrain/engine/gradients/rank_sync.h"
#include "vlmtrain/engine/optimizer/saved_state.h"

namespace vlmtrain::engine {
namespace {

/// Shards are equal and cover each element once, in whole blocks of 256 elements.
TEST(ShardTest, EachElementBelongsToOneRank) {
  for (const int64_t ranks : {1, 2, 3, 5, 16}) {
    SCOPED_TRACE(ranks);
    std::map<size_t, int64_t> elements;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Parameters parameters(at::kFloat, /*large=*/true);
      const GradientLayout layout(parameters.store(), {.rank = rank, .count = ranks});
      for (size_t i = 0; i < layout.size(); ++i) {
        const ElementRange local_range = layout.get_local_range(i);
        EXPECT_EQ(local_range.first, local_range.count == 0 ? 0 : elements[i]) << "pieces follow each other";
        EXPECT_EQ(local_range.first % kShardAlignment, 0);
        elements[i] += local_range.count;
        EXPECT_LE(layout.offset(i) + layout.elements(i), layout.get_non_block_bucket_sizes()[layout.bucket_index(i)]);
      }
      for (const int64_t bucket : layout.get_non_block_bucket_sizes()) EXPECT_EQ(bucket % ranks, 0);
      if (rank + 1 < ranks) continue;
      for (const auto& [i, count] : elements) EXPECT_EQ(count, layout.elements(i)) << i;
    }
  }
}

TEST(ShardTest, SyncedWeightsAreViewsOfTheModelsTensors) {
  Parameters parameters, original;
  original.copy_from(parameters);
  const at::Tensor module_tensor = parameters.tensor("language.matrix");  // as held by a module
  const GradientLayout layout(parameters.store(), {.rank = 1, .count = 2});
  const ShardedOptimizerSync weights(parameters.store(), layout);
  for (const auto& parameter : parameters.store().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor, original.tensor(parameter.name))) << parameter.name;
    EXPECT_TRUE(parameter.tensor.requires_grad() && parameter.tensor.is_leaf());
  }
  parameters.tensor("language.matrix").detach().fill_(7);
  EXPECT_EQ(module_tensor.sum().item<double>(), 7.0 * static_cast<double>(module_tensor.numel()));
}

/// Weights read first are gathered first, and waited for separately.
class RecordingConsensus : public Consensus {
 public:
  engine::AllGatherHandle all_gather_async(const at::Tensor& /*all*/) const override { return num_started++; }
  void wait_for_all_gather(engine::AllGatherHandle ticket) const override { EXPECT_EQ(ticket, num_finished++); }

  mutable int64_t num_started = 0, num_finished = 0;
};

TEST(ShardTest, ABlockWaitsForItsOwnWeights) {
  nn::ParameterStore store{at::TensorOptions(at::kFloat)};
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  constexpr int64_t kBucketElements = 25 * 1024 * 1024 / 4;  // so each matrix has its own bucket
  for (const char* name : {"embedding", "first", "second", "output"}) {
    const size_t first = store.all().size();
    scope.add_parameter(name, {kBucketElements}, nn::InitialValues::zeros());
    if (std::string_view(name) == "first" || std::string_view(name) == "second") store.finish_block(first);
  }
  for (const auto& parameter : store.all()) parameter.tensor.detach().zero_();
  const GradientLayout layout(store, {.rank = 0, .count = 2});
  ShardedOptimizerSync weights(store, layout);
  const RecordingConsensus consensus;
  weights.all_gather_weights(consensus);
  EXPECT_EQ(consensus.num_started, 4);
  EXPECT_EQ(consensus.num_finished, 0) << "nothing is waited for yet";
  store.prepare_non_block_parameters();
  EXPECT_EQ(consensus.num_finished, 2) << "embedding and output";
  store.prepare_block_forward(1, 2);
  EXPECT_EQ(consensus.num_finished, 3);
  store.prepare_block_forward(1, 2);
  EXPECT_EQ(consensus.num_finished, 3) << "it is there";
  store.prepare_block_forward(2, 3);
  EXPECT_EQ(consensus.num_finished, 4);
  weights.all_gather_weights(consensus);
  weights.wait_for_weights();
  EXPECT_EQ(consensus.num_finished, 8);
}

TEST(SavedOptimizerStateTest, NamesRoundTrip) {
  const auto parsed = parse_shard_name(make_shard_name("first_moment.a.b", 512));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->first, "first_moment.a.b");
  EXPECT_EQ(parsed->second, 512);
  for (const char* invalid : {"", "a", "a@", "a@-1", "a@1x", "@"}) EXPECT_FALSE(parse_shard_name(invalid)) << invalid;
}

TEST(SavedOptimizerStateTest, RequestedRangeIsConcatenated) {
  const at::Tensor all = at::arange(10, at::kFloat);
  const SavedOptimizerState saved(
      {{"m@0", all.narrow(0, 0, 4)}, {"m@4", all.narrow(0, 4, 6)}, {"w", all.view({2, 5})}});
  for (const char* name : {"m", "w"}) {
    EXPECT_TRUE(at::equal(*saved.read_range(name, 3, 4, 10, at::kFloat), all.narrow(0, 3, 4))) << name;
    EXPECT_TRUE(at::equal(*saved.read_range(name, 0, 10, 10, at::kFloat), all)) << name;
    EXPECT_FALSE(saved.read_range(name, 0, 10, 12, at::kFloat)) << name << ": of another size";
    EXPECT_FALSE(saved.read_range(name, 0, 10, 10, at::kByte)) << name << ": of another type";
  }
  int num_reads = 0;
  const auto make_lazy = [&](int64_t first, int64_t count) {
    return LazyStateTensor{.dtype = at::kFloat, .shape = {count}, .read = [&num_reads, all, first, count] {
                             ++num_reads;
                             return all.narrow(0, first, count);
                           }};
  };
  const SavedOptimizerState lazy(
      std::map<std::string, LazyStateTensor>{{"m@0", make_lazy(0, 4)}, {"m@4", make_lazy(4, 6)}});
  EXPECT_TRUE(at::equal(*lazy.read_range("m", 5, 4, 10, at::kFloat), all.narrow(0, 5, 4)));
  EXPECT_EQ(num_reads, 1) << "the piece that was asked for";
  EXPECT_EQ(saved.find_unsharded_tensor("m"), nullptr);
  EXPECT_NE(saved.find_unsharded_tensor("w"), nullptr);
  const SavedOptimizerState with_gap({{"m@0", all.narrow(0, 0, 4)}, {"m@5", all.narrow(0, 5, 5)}});
  EXPECT_FALSE(with_gap.read_range("m", 0, 10, 10, at::kFloat));
  const SavedOptimizerState without_last({{"m@0", all.narrow(0, 0, 4)}});
  EXPECT_FALSE(without_last.read_range("m", 0, 4, 10, at::kFloat));
}

}  // namespace
}  // namespace vlmtrain::engine

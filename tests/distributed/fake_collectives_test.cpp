#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/distributed/ranks.h"

namespace vlmtrain::distributed {
namespace {

using testing::ElementsAre;

TEST(FakeCollectivesTest, AllRanksHaveTheSameValues) {
  const auto collectives = make_fake_collectives(3);
  EXPECT_EQ(collectives->world_size(), 3);
  EXPECT_THAT(collectives->all_gather_strings("here"), ElementsAre("here", "here", "here"));
  EXPECT_THAT(collectives->all_gather_strings(""), ElementsAre("", "", ""));

  const RankConsensus consensus(*collectives);
  EXPECT_EQ(consensus.all_reduce_max(engine::StepStatus::kRetrySmaller), engine::StepStatus::kRetrySmaller);
  EXPECT_TRUE(consensus.any_rank(true));
  EXPECT_FALSE(consensus.any_rank(false));
  EXPECT_THAT(consensus.sum_over_ranks({1.5, 2}), ElementsAre(4.5, 6));
  EXPECT_THAT(consensus.union_over_ranks({7, 3}), ElementsAre(3, 7));
}

TEST(FakeCollectivesTest, ReductionsAreCountedAndUnchanged) {
  const auto collectives = make_fake_collectives(4);
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const at::Tensor values = at::full({10}, 2.0, at::TensorOptions(at::kFloat).device(device));
    collectives->all_reduce_async(values);
    collectives->wait_for_reductions();
    if (!device.is_cpu()) continue;
    EXPECT_TRUE(at::equal(values, at::full({10}, 2.0)));
  }
  EXPECT_EQ(collectives->all_reduce_traffic().num_calls, 2);
  EXPECT_EQ(collectives->all_reduce_traffic().bytes, 80);
}

TEST(FakeCollectivesTest, SupportsShardGroups) {
  const auto collectives = make_fake_collectives(6, /*rank=*/4, /*group=*/2);
  EXPECT_EQ(collectives->world_size(), 6);
  EXPECT_EQ(collectives->shard_group_size(), 2);
  const at::Tensor input = at::full({3}, 2.0), output = at::full({6}, 0.0);
  collectives->wait_for_all_gather(collectives->all_gather_async(output, input));
  EXPECT_TRUE(at::equal(output, at::full({6}, 2.0)));
  collectives->reduce_scatter_async(output);
  collectives->all_reduce_replicas_async(input);
  collectives->wait_for_reductions();
  EXPECT_EQ(collectives->reduce_scatter_traffic().bytes, 24);
  EXPECT_EQ(collectives->all_reduce_traffic().bytes, 12);
  EXPECT_EQ(collectives->all_gather_traffic().bytes, 24);
  EXPECT_THAT(collectives->all_gather_strings("x"), ElementsAre("x", "x", "x", "x", "x", "x"));
}

}  // namespace
}  // namespace vlmtrain::distributed

#include "vlmtrain/distributed/virtual_ranks.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/distributed/consensus.h"

namespace vlmtrain::distributed {
namespace {

using testing::ElementsAre;

TEST(VirtualRanksTest, AllHaveWhatTheOneThatIsThereHas) {
  const auto ranks = virtual_ranks(3);
  EXPECT_EQ(ranks->world_size(), 3);
  EXPECT_THAT(ranks->each("here"), ElementsAre("here", "here", "here"));
  EXPECT_THAT(ranks->each(""), ElementsAre("", "", ""));

  const RankConsensus consensus(*ranks);
  EXPECT_EQ(consensus.worst(engine::Verdict::kRedoSmaller), engine::Verdict::kRedoSmaller);
  EXPECT_TRUE(consensus.any(true));
  EXPECT_FALSE(consensus.any(false));
  EXPECT_THAT(consensus.sum({1.5, 2}), ElementsAre(4.5, 6));
  EXPECT_THAT(consensus.together({7, 3}), ElementsAre(3, 7));
}

TEST(VirtualRanksTest, SumsAreCountedAndStayAsTheyAre) {
  const auto ranks = virtual_ranks(4);
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const at::Tensor values = at::full({10}, 2.0, at::TensorOptions(at::kFloat).device(device));
    ranks->begin_sum(values);
    ranks->finish_sums();
    if (!device.is_cpu()) continue;
    EXPECT_TRUE(at::equal(values, at::full({10}, 2.0)));
  }
  EXPECT_EQ(ranks->summed().calls, 2);
  EXPECT_EQ(ranks->summed().bytes, 80);
}

TEST(VirtualRanksTest, MayShareInGroups) {
  const auto ranks = virtual_ranks(6, /*rank=*/4, /*group=*/2);
  EXPECT_EQ(ranks->world_size(), 6);
  EXPECT_EQ(ranks->group_size(), 2);
  const at::Tensor own = at::full({3}, 2.0), all = at::full({6}, 0.0);
  ranks->finish_gather(ranks->begin_gather(all, own));
  EXPECT_TRUE(at::equal(all, at::full({6}, 2.0)));
  ranks->begin_sum_of_parts(all);
  ranks->begin_sum_of_copies(own);
  ranks->finish_sums();
  EXPECT_EQ(ranks->summed_in_parts().bytes, 24);
  EXPECT_EQ(ranks->summed().bytes, 12);
  EXPECT_EQ(ranks->gathered().bytes, 24);
  EXPECT_THAT(ranks->each("x"), ElementsAre("x", "x", "x", "x", "x", "x"));
}

}  // namespace
}  // namespace vlmtrain::distributed

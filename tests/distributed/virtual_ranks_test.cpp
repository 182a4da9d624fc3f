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

}  // namespace
}  // namespace vlmtrain::distributed

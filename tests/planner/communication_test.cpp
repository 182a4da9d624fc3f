#include "vlmtrain/planner/communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;
using testing::Not;

const memory::Gpu& gpu(const char* name) {
  return *memory::find_gpu(name);
}

TEST(LinksTest, AreThoseOfTheCardsForm) {
  const Links sxm = links_of(gpu("h100"), 8, 1, 100);
  EXPECT_EQ(sxm.words(), "NVLink (450 GB/s each way)");
  EXPECT_EQ(links_of(gpu("a100-80"), 8, 1, 100).card_bandwidth, 300e9);
  EXPECT_EQ(links_of(gpu("h100-pcie"), 8, 1, 100).words(), "PCI Express (63 GB/s each way)");
  EXPECT_EQ(links_of(gpu("t4"), 2, 1, 100).card_bandwidth, 15.75e9);
  EXPECT_EQ(links_of(gpu("rtx4090"), 2, 1, 100).card_bandwidth, 31.5e9);
  EXPECT_FALSE(links_of(gpu("h100-mig-3g.40gb"), 2, 1, 100).is_nvlink);
  EXPECT_EQ(links_of(gpu("rtx4090"), 4, 2, 25).words(),
            "PCI Express (32 GB/s each way) and a network of 25 Gbit/s a machine");
  EXPECT_EQ(links_of(gpu("rtx4090"), 2, 2, 25).words(), "a network of 25 Gbit/s a machine");
}

TEST(CommunicationTest, ARingSendsTwiceWhatTheOthersHave) {
  const StepSums sums{.sums = {{.bytes = 800, .turns = 2}, {.bytes = 400, .turns = 2}, {.bytes = 8, .turns = 2}},
                      .overlapping = 1,
                      .gathers = {}};
  const auto of = [&](int64_t world_size) {
    return communication_of(links_of(gpu("h100"), world_size, 1, 100), sums, 1.0, 1);
  };
  EXPECT_EQ(of(2).bytes(), 1208);
  EXPECT_EQ(of(2).least_sent_bytes(), 1208);
  EXPECT_EQ(of(4).least_sent_bytes(), 1812);
  EXPECT_EQ(of(8).least_sent_bytes(), 2114);
}

TEST(CommunicationTest, WhatTheBackwardPassDoesNotHideIsWaitedFor) {
  constexpr int64_t kBucket = 63'000'000'000;  // a second over PCI Express of the fifth generation
  const Links two = links_of(gpu("h100-pcie"), 2, 1, 100);
  const StepSums sums{.sums = {{.bytes = kBucket, .turns = 2},
                               {.bytes = kBucket, .turns = 2},
                               {.bytes = kBucket, .turns = 2},
                               {.bytes = 4, .turns = 2}},
                      .overlapping = 2,
                      .gathers = {}};
  constexpr double kHops = 1e-3;
  EXPECT_NEAR(communication_of(two, sums, 0, 1).waiting_seconds, 3, kHops);
  EXPECT_NEAR(communication_of(two, sums, 1.5, 1).waiting_seconds, 2, kHops);
  EXPECT_NEAR(communication_of(two, sums, 3, 1).waiting_seconds, 1, kHops);
  const Communication long_pass = communication_of(two, sums, 300, 1);
  EXPECT_NEAR(long_pass.seconds, 3, kHops);
  EXPECT_NEAR(long_pass.waiting_seconds, 1, kHops) << "the last one comes behind it";
}

TEST(CommunicationTest, WhatIsGatheredHidesBehindTheNextForwardPass) {
  constexpr int64_t kBucket = 126'000'000'000;  // a second in one turn of two ranks
  const Links two = links_of(gpu("h100-pcie"), 2, 1, 100);
  const StepSums sums{.sums = {{.bytes = kBucket, .turns = 1}, {.bytes = kBucket, .turns = 1}},
                      .overlapping = 1,
                      .gathers = {{.bytes = kBucket, .turns = 1}}};
  constexpr double kHops = 1e-3;
  const Communication of_none = communication_of(two, sums, 0, 1);
  EXPECT_EQ(of_none.bytes(), 3 * kBucket);
  EXPECT_EQ(of_none.least_sent_bytes(), 3 * kBucket / 2);
  EXPECT_EQ(of_none.calls(), 3);
  EXPECT_NEAR(of_none.waiting_seconds, 3, kHops);
  EXPECT_NEAR(communication_of(two, sums, 1.5, 1).waiting_seconds, 1.5, kHops) << "half of the gather is hidden";
  EXPECT_NEAR(communication_of(two, sums, 300, 1).waiting_seconds, 1, kHops) << "the last sum comes behind";
}

TEST(CommunicationTest, TheSlowestLinkOfTheRingCounts) {
  const StepSums sums{.sums = {{.bytes = 12'500'000'000, .turns = 2}}, .overlapping = 0, .gathers = {}};
  const Links near = links_of(gpu("h100"), 16, 1, 100), far = links_of(gpu("h100"), 16, 2, 100);
  EXPECT_LT(communication_of(near, sums, 0, 1).seconds, 0.1);
  EXPECT_NEAR(communication_of(far, sums, 0, 1).seconds, 2.0 * 15 / 16, 1e-3);
  EXPECT_NEAR(communication_of(links_of(gpu("h100"), 16, 2, 400), sums, 0, 1).seconds, 2.0 * 15 / 16 / 4, 1e-3);
}

/// Counted in two passes of two blocks, in a step of three.
TEST(CommunicationTest, WhatIsToldOfBlocksIsOfEachPass) {
  constexpr int64_t kBlock = 126'000'000'000;  // a second in one turn of two ranks
  constexpr Transfer kOfBlock{.bytes = kBlock, .turns = 1};
  StepSums sums{.sums = {{.bytes = 4, .turns = 2}}};
  sums.passes = 2;
  sums.block_gathers.assign(8, kOfBlock);
  sums.block_sums.assign(4, kOfBlock);
  const Links two = links_of(gpu("h100-pcie"), 2, 1, 100);
  constexpr double kHops = 1e-3;
  const Communication of_three = communication_of(two, sums, 0, 3);
  EXPECT_EQ(of_three.bytes(), 18 * kBlock + 4);
  EXPECT_EQ(of_three.calls(), 19);
  EXPECT_EQ(of_three.least_sent_bytes(), 9 * kBlock + 4);
  EXPECT_NEAR(of_three.seconds, 18, kHops);
  EXPECT_NEAR(of_three.waiting_seconds, 18, kHops);
  EXPECT_NEAR(communication_of(two, sums, 3, 3).waiting_seconds, 9, kHops);
  EXPECT_NEAR(communication_of(two, sums, 300, 3).waiting_seconds, 3, kHops) << "nothing hides a pass's first gather";
}

TEST(CommunicationTest, GroupsTalkOverTheirMachinesLinks) {
  constexpr int64_t kBytes = 450'000'000'000;  // a second over an H100's NVLink, 36 over a network of 100 Gbit/s
  const Links links = links_of(gpu("h100"), 16, 2, 100);
  const auto of = [&](Among among) {
    return communication_of(links, {.sums = {{.bytes = kBytes, .turns = 1, .among = among}}}, 0, 1);
  };
  EXPECT_NEAR(of(Among::kNode).seconds, 7.0 / 8, 1e-3);
  EXPECT_EQ(of(Among::kNode).least_sent_bytes(), kBytes / 8 * 7);
  EXPECT_NEAR(of(Among::kAll).seconds, 36 * 15.0 / 16, 1e-2);
  EXPECT_NEAR(of(Among::kCopies).seconds, 36 * 8 / 2.0, 1e-2) << "eight of a machine share its network";
  EXPECT_EQ(of(Among::kCopies).least_sent_bytes(), kBytes / 2);
}

TEST(CommunicationTest, OneRankSaysNothing) {
  const Communication alone = communication_of(
      links_of(gpu("h100"), 1, 1, 100), {.sums = {{.bytes = 4, .turns = 2}}, .overlapping = 0, .gathers = {}}, 1, 1);
  EXPECT_EQ(alone.seconds, 0);
  EXPECT_EQ(alone.waiting_seconds, 0);
  EXPECT_EQ(alone.least_sent_bytes(), 0);
  EXPECT_THAT(alone.links.words(), Not(HasSubstr("network")));
}

}  // namespace
}  // namespace vlmtrain::planner

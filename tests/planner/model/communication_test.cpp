#include "vlmtrain/planner/communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;
using testing::Not;

const memory::GpuSpec& gpu(const char* name) {
  return *memory::find_gpu_spec(name);
}

TEST(InterconnectTest, DependOnTheGpuFormFactor) {
  const Interconnect sxm = make_interconnect(gpu("h100"), 8, 1, 100);
  EXPECT_EQ(sxm.to_string(), "NVLink (450 GB/s each way)");
  EXPECT_EQ(make_interconnect(gpu("a100-80"), 8, 1, 100).intra_node_bandwidth, 300e9);
  EXPECT_EQ(make_interconnect(gpu("h100-pcie"), 8, 1, 100).to_string(), "PCI Express (63 GB/s each way)");
  EXPECT_EQ(make_interconnect(gpu("t4"), 2, 1, 100).intra_node_bandwidth, 15.75e9);
  EXPECT_EQ(make_interconnect(gpu("rtx4090"), 2, 1, 100).intra_node_bandwidth, 31.5e9);
  EXPECT_FALSE(make_interconnect(gpu("h100-mig-3g.40gb"), 2, 1, 100).uses_nvlink);
  EXPECT_EQ(make_interconnect(gpu("rtx4090"), 4, 2, 25).to_string(),
            "PCI Express (32 GB/s each way) and a network of 25 Gbit/s per node");
  EXPECT_EQ(make_interconnect(gpu("rtx4090"), 2, 2, 25).to_string(), "a network of 25 Gbit/s per node");
}

TEST(CommunicationTest, RingAllReduceSendsTwiceTheOtherRanksShare) {
  const StepCollectives collectives{.gradient_reductions = {{.bytes = 800, .num_ring_phases = 2},
                                                            {.bytes = 400, .num_ring_phases = 2},
                                                            {.bytes = 8, .num_ring_phases = 2}},
                                    .num_overlapped_reductions = 1,
                                    .weight_all_gathers = {}};
  const auto estimate = [&](int64_t world_size) {
    return estimate_communication(make_interconnect(gpu("h100"), world_size, 1, 100), collectives, 1.0, 1);
  };
  EXPECT_EQ(estimate(2).bytes(), 1208);
  EXPECT_EQ(estimate(2).compute_min_sent_bytes(), 1208);
  EXPECT_EQ(estimate(4).compute_min_sent_bytes(), 1812);
  EXPECT_EQ(estimate(8).compute_min_sent_bytes(), 2114);
}

TEST(CommunicationTest, ReductionsAreHiddenByTheBackwardPass) {
  constexpr int64_t kBucket = 63'000'000'000;  // one second over PCI Express 5
  const Interconnect two_ranks = make_interconnect(gpu("h100-pcie"), 2, 1, 100);
  const StepCollectives collectives{.gradient_reductions = {{.bytes = kBucket, .num_ring_phases = 2},
                                                            {.bytes = kBucket, .num_ring_phases = 2},
                                                            {.bytes = kBucket, .num_ring_phases = 2},
                                                            {.bytes = 4, .num_ring_phases = 2}},
                                    .num_overlapped_reductions = 2,
                                    .weight_all_gathers = {}};
  constexpr double kHops = 1e-3;
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 0, 1).exposed_seconds, 3, kHops);
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 1.5, 1).exposed_seconds, 2, kHops);
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 3, 1).exposed_seconds, 1, kHops);
  const CommunicationEstimate long_micro_batch = estimate_communication(two_ranks, collectives, 300, 1);
  EXPECT_NEAR(long_micro_batch.seconds, 3, kHops);
  EXPECT_NEAR(long_micro_batch.exposed_seconds, 1, kHops) << "the last one follows it";
}

TEST(CommunicationTest, AllGathersAreHiddenByTheNextForwardPass) {
  constexpr int64_t kBucket = 126'000'000'000;  // one second per ring phase of two ranks
  const Interconnect two_ranks = make_interconnect(gpu("h100-pcie"), 2, 1, 100);
  const StepCollectives collectives{
      .gradient_reductions = {{.bytes = kBucket, .num_ring_phases = 1}, {.bytes = kBucket, .num_ring_phases = 1}},
      .num_overlapped_reductions = 1,
      .weight_all_gathers = {{.bytes = kBucket, .num_ring_phases = 1}}};
  constexpr double kHops = 1e-3;
  const CommunicationEstimate without_overlap = estimate_communication(two_ranks, collectives, 0, 1);
  EXPECT_EQ(without_overlap.bytes(), 3 * kBucket);
  EXPECT_EQ(without_overlap.compute_min_sent_bytes(), 3 * kBucket / 2);
  EXPECT_EQ(without_overlap.count_collectives(), 3);
  EXPECT_NEAR(without_overlap.exposed_seconds, 3, kHops);
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 1.5, 1).exposed_seconds, 1.5, kHops)
      << "half of the gather is hidden";
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 300, 1).exposed_seconds, 1, kHops)
      << "the last reduction follows";
}

TEST(CommunicationTest, TheSlowestLinkOfTheRingLimitsTheBandwidth) {
  const StepCollectives collectives{.gradient_reductions = {{.bytes = 12'500'000'000, .num_ring_phases = 2}},
                                    .num_overlapped_reductions = 0,
                                    .weight_all_gathers = {}};
  const Interconnect intra_node = make_interconnect(gpu("h100"), 16, 1, 100),
                     inter_node = make_interconnect(gpu("h100"), 16, 2, 100);
  EXPECT_LT(estimate_communication(intra_node, collectives, 0, 1).seconds, 0.1);
  EXPECT_NEAR(estimate_communication(inter_node, collectives, 0, 1).seconds, 2.0 * 15 / 16, 1e-3);
  EXPECT_NEAR(estimate_communication(make_interconnect(gpu("h100"), 16, 2, 400), collectives, 0, 1).seconds,
              2.0 * 15 / 16 / 4, 1e-3);
}

/// Recorded in two micro-batches of two blocks, for a step of three.
TEST(CommunicationTest, BlockCollectivesRunInEachMicroBatch) {
  constexpr int64_t kBlock = 126'000'000'000;  // one second per ring phase of two ranks
  constexpr CollectiveCall kBlockCall{.bytes = kBlock, .num_ring_phases = 1};
  StepCollectives collectives{.gradient_reductions = {{.bytes = 4, .num_ring_phases = 2}}};
  collectives.num_micro_batches = 2;
  collectives.block_all_gathers.assign(8, kBlockCall);
  collectives.block_reduce_scatters.assign(4, kBlockCall);
  const Interconnect two_ranks = make_interconnect(gpu("h100-pcie"), 2, 1, 100);
  constexpr double kHops = 1e-3;
  const CommunicationEstimate three_micro_batches = estimate_communication(two_ranks, collectives, 0, 3);
  EXPECT_EQ(three_micro_batches.bytes(), 18 * kBlock + 4);
  EXPECT_EQ(three_micro_batches.count_collectives(), 19);
  EXPECT_EQ(three_micro_batches.compute_min_sent_bytes(), 9 * kBlock + 4);
  EXPECT_NEAR(three_micro_batches.seconds, 18, kHops);
  EXPECT_NEAR(three_micro_batches.exposed_seconds, 18, kHops);
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 3, 3).exposed_seconds, 9, kHops);
  EXPECT_NEAR(estimate_communication(two_ranks, collectives, 300, 3).exposed_seconds, 3, kHops)
      << "nothing hides a pass's first gather";
}

TEST(CommunicationTest, NodeGroupsUseTheInterconnectOfTheirNode) {
  constexpr int64_t kBytes = 450'000'000'000;  // one second over an H100's NVLink, 36 over a network of 100 Gbit/s
  const Interconnect interconnect = make_interconnect(gpu("h100"), 16, 2, 100);
  const auto estimate = [&](CollectiveGroup group) {
    return estimate_communication(
        interconnect, {.gradient_reductions = {{.bytes = kBytes, .num_ring_phases = 1, .group = group}}}, 0, 1);
  };
  EXPECT_NEAR(estimate(CollectiveGroup::kNode).seconds, 7.0 / 8, 1e-3);
  EXPECT_EQ(estimate(CollectiveGroup::kNode).compute_min_sent_bytes(), kBytes / 8 * 7);
  EXPECT_NEAR(estimate(CollectiveGroup::kWorld).seconds, 36 * 15.0 / 16, 1e-2);
  EXPECT_NEAR(estimate(CollectiveGroup::kReplicas).seconds, 36 * 8 / 2.0, 1e-2)
      << "eight of a machine share its network";
  EXPECT_EQ(estimate(CollectiveGroup::kReplicas).compute_min_sent_bytes(), kBytes / 2);
}

TEST(CommunicationTest, ASingleRankCommunicatesNothing) {
  const CommunicationEstimate single_rank =
      estimate_communication(make_interconnect(gpu("h100"), 1, 1, 100),
                             {.gradient_reductions = {{.bytes = 4, .num_ring_phases = 2}},
                              .num_overlapped_reductions = 0,
                              .weight_all_gathers = {}},
                             1, 1);
  EXPECT_EQ(single_rank.seconds, 0);
  EXPECT_EQ(single_rank.exposed_seconds, 0);
  EXPECT_EQ(single_rank.compute_min_sent_bytes(), 0);
  EXPECT_THAT(single_rank.interconnect.to_string(), Not(HasSubstr("network")));
}

}  // namespace
}  // namespace vlmtrain::planner

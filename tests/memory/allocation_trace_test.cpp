#include "vlmtrain/memory/allocation_trace.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace vlmtrain::memory {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

/// An address without memory.
const void* make_address(uintptr_t number) {
  return reinterpret_cast<const void*>(number);
}

AllocationEvent allocation(uintptr_t address, int64_t bytes, Component component, int block = -1,
                           bool backward = false) {
  return {make_address(address), bytes, {component, block}, backward, 1000};
}

AllocationEvent release(uintptr_t address, int64_t bytes, Component during) {
  return {make_address(address), -bytes, {during, -1}, false, 1000};
}

int64_t bytes_of_component(const MemoryPeak& peak, Component component) {
  return peak.bytes_by_component[static_cast<size_t>(component)];
}

int64_t sum_components(const MemoryPeak& peak) {
  return std::accumulate(peak.bytes_by_component.begin(), peak.bytes_by_component.end(), int64_t{0});
}

TEST(FindPeakTest, EmptyTraceHasNoPeak) {
  const MemoryPeak peak = find_memory_peak({});
  EXPECT_EQ(peak.allocated_bytes, 0);
  EXPECT_THAT(peak.bytes_by_component, Each(0));
}

TEST(FindPeakTest, FindsPeakAndItsComponents) {
  const std::vector<AllocationEvent> events{
      allocation(1, 100, Component::kWeights), allocation(2, 40, Component::kVision, 3),
      allocation(3, 60, Component::kLanguage, 5), release(2, 40, Component::kLanguage),
      allocation(4, 30, Component::kLoss, -1, true)};
  const MemoryPeak peak = find_memory_peak(events);
  EXPECT_EQ(peak.event_index, 2U);
  EXPECT_EQ(peak.allocated_bytes, 200);
  EXPECT_EQ(bytes_of_component(peak, Component::kWeights), 100);
  EXPECT_EQ(bytes_of_component(peak, Component::kVision), 40);
  EXPECT_EQ(bytes_of_component(peak, Component::kLanguage), 60);
  EXPECT_EQ(bytes_of_component(peak, Component::kLoss), 0);
  EXPECT_EQ(peak.tag, (MemoryTag{Component::kLanguage, 5}));
  EXPECT_FALSE(peak.is_backward);
  EXPECT_EQ(sum_components(peak), peak.allocated_bytes);
}

TEST(FindPeakTest, FreesCountForAllocatingComponent) {
  const std::vector<AllocationEvent> events{allocation(1, 50, Component::kVision),
                                            release(1, 50, Component::kOptimizer),
                                            allocation(2, 70, Component::kOptimizer, -1, true)};
  const MemoryPeak peak = find_memory_peak(events);
  EXPECT_EQ(peak.allocated_bytes, 70);
  EXPECT_EQ(bytes_of_component(peak, Component::kVision), 0);
  EXPECT_EQ(bytes_of_component(peak, Component::kOptimizer), 70);
  EXPECT_TRUE(peak.is_backward);
}

TEST(FindPeakTest, ReusedAddressGetsNewOwner) {
  const std::vector<AllocationEvent> events{allocation(1, 50, Component::kVision), release(1, 50, Component::kVision),
                                            allocation(1, 60, Component::kLoss), allocation(2, 1, Component::kInput),
                                            release(1, 60, Component::kLoss)};
  const MemoryPeak peak = find_memory_peak(events);
  EXPECT_EQ(peak.allocated_bytes, 61);
  EXPECT_EQ(bytes_of_component(peak, Component::kVision), 0);
  EXPECT_EQ(bytes_of_component(peak, Component::kLoss), 60);
}

TEST(FindPeakTest, PrefersFirstOfEqualPeaks) {
  const std::vector<AllocationEvent> events{allocation(1, 50, Component::kVision), release(1, 50, Component::kVision),
                                            allocation(2, 50, Component::kLoss)};
  EXPECT_EQ(find_memory_peak(events).event_index, 0U);
}

TEST(FindPeakTest, CountsEarlierAllocationsFromEvent) {
  const std::vector<AllocationEvent> events{
      allocation(1, 100, Component::kWeights), allocation(2, 900, Component::kVision),
      release(2, 900, Component::kVision),     allocation(3, 10, Component::kInput),
      allocation(4, 20, Component::kLanguage), release(4, 20, Component::kLanguage)};
  EXPECT_EQ(find_memory_peak(events).allocated_bytes, 1000);
  const MemoryPeak later = find_memory_peak(events, 3);
  EXPECT_EQ(later.event_index, 4U);
  EXPECT_EQ(later.allocated_bytes, 130);
  EXPECT_EQ(bytes_of_component(later, Component::kWeights), 100);
  EXPECT_EQ(bytes_of_component(later, Component::kVision), 0);
}

/// The trace works with any device, here the CPU.
class AllocationTraceTest : public testing::Test {
 protected:
  static at::Tensor allocate(int64_t bytes) { return at::empty({bytes}, at::kByte); }
};

TEST_F(AllocationTraceTest, RecordsAllocationsWithTags) {
  const at::Tensor before = allocate(100);
  AllocationTrace trace(at::kCPU);
  {
    const ComponentScope vision(Component::kVision);
    const BlockScope block(Component::kVision, 4);
    allocate(1000);
  }
  ASSERT_THAT(trace.events(), SizeIs(2));
  const auto& allocated = trace.events()[0];
  const auto& freed = trace.events()[1];
  EXPECT_GE(allocated.bytes, 1000);
  EXPECT_EQ(freed.bytes, -allocated.bytes);
  EXPECT_EQ(freed.address, allocated.address);
  EXPECT_EQ(allocated.tag, (MemoryTag{Component::kVision, 4}));
  EXPECT_FALSE(allocated.is_backward);
}

TEST_F(AllocationTraceTest, IgnoresOlderTensors) {
  at::Tensor before = allocate(100);
  const AllocationTrace trace(at::kCPU);
  before.reset();
  EXPECT_THAT(trace.events(), IsEmpty());
}

TEST_F(AllocationTraceTest, IgnoresOtherThreads) {
  const AllocationTrace trace(at::kCPU);
  std::thread([] { allocate(100); }).join();
  EXPECT_THAT(trace.events(), IsEmpty());
}

TEST_F(AllocationTraceTest, TagsBackwardPass) {
  const at::Tensor leaf = at::ones({1000}).set_requires_grad(true);
  AllocationTrace trace(at::kCPU);
  at::Tensor product;
  {
    const BlockScope block(Component::kLanguage, 2);
    product = leaf.mul(leaf);
  }
  at::Tensor total;
  {
    const ComponentScope loss(Component::kLoss);
    total = product.sum();
  }
  const size_t forward = trace.events().size();
  total.backward();
  bool in_block = false;
  for (size_t i = 0; i < trace.events().size(); ++i) {
    const auto& event = trace.events()[i];
    EXPECT_EQ(event.is_backward && i < forward, false);
    if (i < forward || event.bytes <= 0 || !event.is_backward) continue;
    in_block |= event.tag == MemoryTag{Component::kLanguage, 2};
  }
  EXPECT_TRUE(in_block) << "the product's gradient is made where the product was";
}

TEST_F(AllocationTraceTest, SurvivingAllocationsAreWorkspacesUnlessGradients) {
  AllocationTrace trace(at::kCPU);
  const at::Tensor weight = allocate(4000);
  const size_t built = trace.events().size();
  at::Tensor gradient;
  {
    const ComponentScope gradients(Component::kGradients);
    gradient = allocate(1000);
  }
  const at::Tensor workspace = allocate(2000);
  allocate(500);
  trace.tag_workspaces(built);
  const MemoryPeak peak = find_memory_peak(trace.events());
  EXPECT_GE(bytes_of_component(peak, Component::kGradients), 1000);
  EXPECT_LT(bytes_of_component(peak, Component::kGradients), 2000);
  EXPECT_GE(bytes_of_component(peak, Component::kWorkspace), 2000);
  EXPECT_LT(bytes_of_component(peak, Component::kWorkspace), 4000);
  EXPECT_GE(bytes_of_component(peak, Component::kOther), 4500)
      << "what was there before the steps, and what does not outlive them";
  EXPECT_EQ(sum_components(peak), peak.allocated_bytes);
}

}  // namespace
}  // namespace vlmtrain::memory

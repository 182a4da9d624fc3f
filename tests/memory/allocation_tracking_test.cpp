#include "vlmtrain/memory/allocation_tracking.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "vlmtrain/memory/meta_memory.h"

namespace vlmtrain::memory {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

at::Tensor allocate_megabytes(int64_t count) {
  return at::empty({count * kMegabyte}, at::kByte);
}

TEST(HostBudgetTest, CountsLiveAndPeakBytes) {
  const at::Tensor before = allocate_megabytes(1);
  HostMemoryBudget budget;
  EXPECT_EQ(budget.live_bytes(), 0);
  {
    const at::Tensor first = allocate_megabytes(2);
    const at::Tensor second = allocate_megabytes(3);
    EXPECT_EQ(budget.live_bytes(), 5 * kMegabyte);
  }
  EXPECT_EQ(budget.live_bytes(), 0);
  EXPECT_EQ(budget.peak_bytes(), 5 * kMegabyte);
  budget.reset_peak();
  EXPECT_EQ(budget.peak_bytes(), 0);
}

TEST(HostBudgetTest, RejectsOnlyAllocationsOverLimit) {
  HostMemoryBudget budget;
  const at::Tensor base = allocate_megabytes(4);
  {
    const HostMemoryBudget::ScopedLimit limit(budget, 6 * kMegabyte);
    const at::Tensor allowed = allocate_megabytes(2);
    try {
      allocate_megabytes(1);
      FAIL();
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("would exceed the run's limit of 0.006 GB"));
    }
    EXPECT_EQ(budget.live_bytes(), 6 * kMegabyte) << "what was refused was not taken";
    EXPECT_EQ(budget.num_rejected_allocations(), 1);
    // Allocations of another thread, such as the loader's, do not count.
    std::jthread([] { allocate_megabytes(3); });
  }
  EXPECT_NO_THROW(allocate_megabytes(100)) << "without a limit";
  EXPECT_EQ(budget.num_rejected_allocations(), 1);
}

TEST(HostBudgetTest, OtherThreadsMayFree) {
  HostMemoryBudget budget;
  at::Tensor tensor = allocate_megabytes(2);
  std::jthread([&tensor] { tensor.reset(); });
  EXPECT_EQ(budget.live_bytes(), 0);
}

TEST(HostBudgetTest, IgnoresAllocationsWhilePaused) {
  HostMemoryBudget budget;
  at::Tensor tensor;
  {
    const HostMemoryBudget::ScopedLimit limit(budget, kMegabyte);
    const HostMemoryBudget::ScopedPause pause(budget);
    tensor = allocate_megabytes(5);
    EXPECT_EQ(budget.live_bytes(), 0);
  }
  EXPECT_EQ(budget.num_rejected_allocations(), 0);
  tensor.reset();
  EXPECT_EQ(budget.live_bytes(), 0) << "what was not tracked_tensor is not given back";
  const at::Tensor tracked_tensor = allocate_megabytes(1);
  EXPECT_EQ(budget.peak_bytes(), kMegabyte);
}

TEST(HostBudgetTest, CountsAlongsideFaultInjection) {
  HostMemoryBudget budget;
  AllocationFaultInjector faults;
  const at::Tensor both = allocate_megabytes(1);
  EXPECT_EQ(budget.live_bytes(), kMegabyte);
  EXPECT_EQ(faults.live_bytes(), kMegabyte);
  faults.arm({.failing_allocation_index = 0});
  EXPECT_THROW(allocate_megabytes(1), c10::OutOfMemoryError);
  EXPECT_EQ(budget.live_bytes(), kMegabyte) << "an allocation that failed for another reason is not held";
}

TEST(MetaMemoryTrackerTest, CountsMetaTensors) {
  constexpr int64_t kTerabyte = int64_t{1} << 40;
  const at::Tensor before = at::empty({kTerabyte}, at::TensorOptions(at::kByte).device(at::kMeta));
  const MetaMemoryTracker memory;
  {
    const at::Tensor x = at::zeros({kTerabyte}, at::TensorOptions(at::kByte).device(at::kMeta));
    EXPECT_EQ(memory.live_bytes(), kTerabyte);
    const at::Tensor view = x.narrow(0, 5, 1000);
    EXPECT_EQ(memory.live_bytes(), kTerabyte);
    const at::Tensor sum = x + x;
    EXPECT_EQ(memory.live_bytes(), 2 * kTerabyte);
    EXPECT_FALSE(sum.is_alias_of(x));
  }
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 2 * kTerabyte);
}

}  // namespace
}  // namespace vlmtrain::memory

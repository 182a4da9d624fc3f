#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "virtual_gpu/card.h"
#include "virtual_gpu/small_run.h"

namespace vlmtrain {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Workspaces of cuBLAS included, which earlier tests left.
void empty_cache() {
  memory::release_unused(at::Device(at::kCUDA, 0));
}

class OutOfMemoryTest : public testing::Test {
 protected:
  void TearDown() override {
    filled_.reset();
    empty_cache();
  }

  /// Takes the card's memory but for a few pages, so that the card is as small as a test wants it.
  void fill_card() {
    empty_cache();
    const auto now = counters();
    const auto taken = static_cast<int64_t>(now.capacity_bytes - now.used_bytes) - 4 * kMiB;
    filled_ = at::empty({taken / (2 * kMiB), 2 * kMiB}, at::TensorOptions(at::kByte).device(at::kCUDA));
  }

  at::Tensor filled_;
};

TEST_F(OutOfMemoryTest, IsPyTorchsOwnErrorOnACardTooSmall) {
  SmallRun run({});
  fill_card();
  EXPECT_THROW(run.step(), engine::StepOutOfMemory);
  EXPECT_GT(counters().failed_allocations, 0U);
}

TEST_F(OutOfMemoryTest, AStepRunsAgainOnceThereIsRoom) {
  SmallRun run({});
  fill_card();
  EXPECT_THROW(run.step(), engine::StepOutOfMemory);
  filled_.reset();
  empty_cache();
  card().reset();
  EXPECT_EQ(run.step().samples, 4);
  EXPECT_EQ(counters().rejected_launches, 0U);
  EXPECT_EQ(counters().failed_allocations, 0U);
}

}  // namespace
}  // namespace vlmtrain

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"

namespace vlmtrain {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Releases cached memory, including the cuBLAS workspaces of earlier tests.
void empty_cache() {
  memory::empty_cache(at::Device(at::kCUDA, 0));
}

class OutOfMemoryTest : public testing::Test {
 protected:
  void TearDown() override {
    filler_.reset();
    empty_cache();
  }

  /// Allocates all but a few pages of the GPU's memory.
  void fill_gpu() {
    empty_cache();
    const auto usage = counters();
    const auto filled_bytes = static_cast<int64_t>(usage.capacity_bytes - usage.used_bytes) - 4 * kMiB;
    filler_ = at::empty({filled_bytes / (2 * kMiB), 2 * kMiB}, at::TensorOptions(at::kByte).device(at::kCUDA));
  }

  at::Tensor filler_;
};

TEST_F(OutOfMemoryTest, ThrowsPyTorchErrorOnSmallGpu) {
  SmallRun run({});
  fill_gpu();
  EXPECT_THROW(run.step(), engine::StepOutOfMemory);
  EXPECT_GT(counters().num_failed_allocations, 0U);
}

TEST_F(OutOfMemoryTest, StepSucceedsOnceMemoryIsFree) {
  SmallRun run({});
  fill_gpu();
  EXPECT_THROW(run.step(), engine::StepOutOfMemory);
  filler_.reset();
  empty_cache();
  virtual_gpu().reset();
  EXPECT_EQ(run.step().samples, 4);
  EXPECT_EQ(counters().num_rejected_launches, 0U);
  EXPECT_EQ(counters().num_failed_allocations, 0U);
}

}  // namespace
}  // namespace vlmtrain

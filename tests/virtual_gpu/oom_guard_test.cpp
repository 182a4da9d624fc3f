#include "train/step/oom_guard.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// PyTorch's out-of-memory errors: the GPU shrinks until a step does not fit.
TEST(OomGuardTest, RetriesStepOnSmallGpu) {
  SmallRun run({.micro_batch_size = 8, .repeats = 2});
  const at::Device device = memory::open_device("cuda");
  std::vector<int64_t> next_micro_batches;
  const engine::CrossEntropyObjective objective;
  const engine::Consensus single_rank;
  OomGuard guard(run.training(), device, single_rank, [&](const std::string& reason, const engine::StepLayout& next) {
    EXPECT_NE(reason.find("out of memory"), std::string::npos) << reason;
    next_micro_batches.push_back(next.split.num_micro_batches());
  });
  engine::StepLayout layout;
  layout.split = engine::split_in_order({std::ssize(run.samples())});
  const auto step = [&] {
    return guard.step(objective, run.samples(), layout, /*seed=*/1, [] {
      return engine::LearningRates{1e-4, 1e-4, 1e-4};
    });
  };
  ASSERT_EQ(step().num_failed_attempts, 0);

  at::Tensor filler;
  int64_t num_failed_attempts = 0;
  for (int64_t free_mib = 512; num_failed_attempts == 0 && free_mib > 0; free_mib = free_mib * 97 / 100) {
    filler.reset();
    memory::empty_cache(device);
    const int64_t filled_bytes = memory::get_free_device_bytes(device) - free_mib * kMiB;
    filler = at::empty({filled_bytes}, at::TensorOptions(at::kByte).device(device));
    virtual_gpu().reset();
    num_failed_attempts = step().num_failed_attempts;
  }
  EXPECT_GT(num_failed_attempts, 0);
  EXPECT_EQ(std::ssize(next_micro_batches), num_failed_attempts);
  EXPECT_EQ(next_micro_batches.front(), 2);
  EXPECT_GT(counters().num_failed_allocations, 0U);
  EXPECT_EQ(counters().num_rejected_launches, 0U);

  filler.reset();
  memory::empty_cache(device);
  EXPECT_EQ(step().num_failed_attempts, 0) << "with enough memory again";
}

/// A guard over a small run with successful steps, on a GPU with injected faults.
class FaultyGpuTest : public testing::Test {
 protected:
  FaultyGpuTest() {
    layout_.split = engine::split_in_order({4, 4});
    step();
    step();
  }
  ~FaultyGpuTest() override {
    for (const auto call : {vgpu::FaultPoint::kLaunch, vgpu::FaultPoint::kCublasCreate,
                            vgpu::FaultPoint::kHostAllocation, vgpu::FaultPoint::kDeviceAllocation}) {
      virtual_gpu().inject_failures(call, 0, 0);
    }
  }

  CompletedStep step() {
    attempted_layouts_.clear();
    return guard_.step(objective_, run_.samples(), layout_, /*seed=*/1, [] {
      return engine::LearningRates{1e-4, 1e-4, 1e-4};
    });
  }

  SmallRun run_{{.micro_batch_size = 4, .repeats = 2}};
  const at::Device device_ = memory::open_device("cuda");
  engine::StepLayout layout_;
  std::vector<engine::StepLayout> attempted_layouts_;
  std::string reason_;
  const engine::CrossEntropyObjective objective_;
  const engine::Consensus single_rank_;
  OomGuard guard_{run_.training(), device_, single_rank_,
                  [this](const std::string& reason, const engine::StepLayout& next) {
                    reason_ = reason;
                    attempted_layouts_.push_back(next);
                  }};
};

/// A kernel's code is loaded at its first launch, which may fail with cudaErrorMemoryAllocation.
/// That is not a c10::OutOfMemoryError. After the first launch that changes a weight the step
/// cannot be retried.
TEST_F(FaultyGpuTest, FailedLaunchIsRetriedUntilWeightsChange) {
  virtual_gpu().reset();
  step();
  const uint64_t launches = counters().num_launches;
  int64_t num_retried = 0;
  int64_t num_partial = 0;
  std::vector<uint64_t> launch_indices{launches - 1};  // the update's own few launches come last
  for (uint64_t launch_index = 0; launch_index < launches - 1; launch_index += 1 + launches / 60)
    launch_indices.push_back(launch_index);
  std::ranges::sort(launch_indices);
  for (const uint64_t launch_index : launch_indices) {
    virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, launch_index, 1);
    try {
      const CompletedStep result = step();
      EXPECT_EQ(result.num_failed_attempts, 1) << launch_index;
      EXPECT_EQ(result.layout, layout_) << "emptying the cache suffices for the driver";
      EXPECT_EQ(reason_, "CUDA error: out of memory");
      EXPECT_EQ(num_partial, 0) << launch_index << " of " << launches;
      ++num_retried;
    } catch (const engine::PartialUpdateError& error) {
      EXPECT_EQ(error.code(), ExitCode::kFailed);
      EXPECT_TRUE(attempted_layouts_.empty());
      ++num_partial;
    }
  }
  EXPECT_GT(num_retried, 30);
  EXPECT_GT(num_partial, 0);
}

/// Freeing memory launches no kernel that could fail too: the next failing launch is the first of
/// the retried step.
TEST_F(FaultyGpuTest, FreeingMemoryLaunchesNoKernel) {
  virtual_gpu().reset();
  step();
  const uint64_t launches = counters().num_launches;
  int64_t num_repeated = 0;
  // The update's own launches come last.
  for (uint64_t launch_index = 0; launch_index < launches * 17 / 20; launch_index += 1 + launches / 40) {
    virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, launch_index, 2);
    EXPECT_EQ(step().num_failed_attempts, 2) << launch_index;
    ++num_repeated;
  }
  EXPECT_GT(num_repeated, 30);
  virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, launches - 1, 2);
  EXPECT_THROW(step(), engine::PartialUpdateError);
}

TEST_F(FaultyGpuTest, RepeatedDriverFailuresShrinkMicroBatches) {
  virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, 0, 2);
  const CompletedStep result = step();
  EXPECT_EQ(result.num_failed_attempts, 2);
  EXPECT_EQ(result.layout.split.sizes, (std::vector<int64_t>{2, 2, 2, 2}));
}

TEST_F(FaultyGpuTest, PermanentFailureIsNotRetriedForever) {
  virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, 0, uint64_t{1} << 40);
  try {
    step();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_NE(std::string(error.what()).find("device memory is exhausted regardless of the sample"), std::string::npos)
        << error.what();
  }
  EXPECT_LE(attempted_layouts_.size(), 4U);
  virtual_gpu().inject_failures(vgpu::FaultPoint::kLaunch, 0, 0);
  EXPECT_EQ(step().num_failed_attempts, 0);
}

/// LibTorch creates a cuBLAS handle per thread.
TEST_F(FaultyGpuTest, RetriesCublasHandleCreation) {
  virtual_gpu().inject_failures(vgpu::FaultPoint::kCublasCreate, 0, 1);
  int64_t num_failed_attempts = -1;
  std::thread([&] { num_failed_attempts = step().num_failed_attempts; }).join();
  EXPECT_EQ(num_failed_attempts, 1);
  EXPECT_NE(reason_.find("CUBLAS_STATUS_ALLOC_FAILED"), std::string::npos) << reason_;
}

TEST_F(FaultyGpuTest, CopiesBlockWithoutPinnedMemory) {
  memory::release_pinned_memory(device_);
  virtual_gpu().reset();
  virtual_gpu().inject_failures(vgpu::FaultPoint::kHostAllocation, 0, uint64_t{1} << 40);
  const CompletedStep result = step();
  EXPECT_EQ(result.num_failed_attempts, 0);
  EXPECT_GT(counters().host_to_device_pageable.num_calls, 0U);
  EXPECT_EQ(counters().num_host_allocations, 0U);
  engine::AsyncScalarCopy scalars(result.result.scalars);
  EXPECT_EQ(std::ssize(scalars.read()), result.result.scalars.numel());
}

/// Other processes may fill the GPU.
TEST_F(FaultyGpuTest, FullGpuIsOutOfMemory) {
  memory::empty_cache(device_);
  virtual_gpu().inject_failures(vgpu::FaultPoint::kDeviceAllocation, 0, 4);
  const CompletedStep result = step();
  EXPECT_GT(result.num_failed_attempts, 0);
  EXPECT_NE(reason_.find("CUDA out of memory"), std::string::npos) << reason_;
}

}  // namespace
}  // namespace vlmtrain::train

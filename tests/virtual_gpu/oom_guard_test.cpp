#include "train/oom_guard.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "virtual_gpu/card.h"
#include "virtual_gpu/small_run.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/memory/recovery.h"

namespace vlmtrain::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// PyTorch's own out-of-memory errors: the card is made smaller until a step does not fit.
TEST(OomGuardTest, DoesAStepAgainOnACardThatIsTooSmall) {
  SmallRun run({.micro_batch_size = 8, .repeats = 2});
  const at::Device device = memory::open_device("cuda");
  std::vector<int64_t> next_micro_batches;
  const engine::CrossEntropy objective;
  const engine::Consensus alone;
  OomGuard guard(run.training(), device, alone, [&](const std::string& reason, const engine::StepLayout& next) {
    EXPECT_NE(reason.find("out of memory"), std::string::npos) << reason;
    next_micro_batches.push_back(next.cut.micro_batches());
  });
  engine::StepLayout layout;
  layout.cut = engine::cut_in_order({std::ssize(run.samples())});
  const auto step = [&] {
    return guard.step(objective, run.samples(), layout, /*seed=*/1, [] {
      return engine::LearningRates{1e-4, 1e-4, 1e-4};
    });
  };
  ASSERT_EQ(step().failed_attempts, 0);

  at::Tensor filled;
  int64_t failed_attempts = 0;
  for (int64_t room = 512; failed_attempts == 0 && room > 0; room = room * 97 / 100) {
    filled.reset();
    memory::release_unused(device);
    const int64_t taken = memory::free_bytes(device) - room * kMiB;
    filled = at::empty({taken}, at::TensorOptions(at::kByte).device(device));
    card().reset();
    failed_attempts = step().failed_attempts;
  }
  EXPECT_GT(failed_attempts, 0);
  EXPECT_EQ(std::ssize(next_micro_batches), failed_attempts);
  EXPECT_EQ(next_micro_batches.front(), 2);
  EXPECT_GT(counters().failed_allocations, 0U);
  EXPECT_EQ(counters().rejected_launches, 0U);

  filled.reset();
  memory::release_unused(device);
  EXPECT_EQ(step().failed_attempts, 0) << "with room again";
}

/// A guard over a small run whose steps have gone well before, on a card with faults.
class FaultyCardTest : public testing::Test {
 protected:
  FaultyCardTest() {
    layout_.cut = engine::cut_in_order({4, 4});
    step();
    step();
  }
  ~FaultyCardTest() override {
    for (const auto call : {vgpu::Fallible::kLaunch, vgpu::Fallible::kCublasCreate, vgpu::Fallible::kHostAllocation,
                            vgpu::Fallible::kDeviceAllocation}) {
      card().fail_calls(call, 0, 0);
    }
  }

  DoneStep step() {
    tried_.clear();
    return guard_.step(objective_, run_.samples(), layout_, /*seed=*/1, [] {
      return engine::LearningRates{1e-4, 1e-4, 1e-4};
    });
  }

  SmallRun run_{{.micro_batch_size = 4, .repeats = 2}};
  const at::Device device_ = memory::open_device("cuda");
  engine::StepLayout layout_;
  std::vector<engine::StepLayout> tried_;
  std::string reason_;
  const engine::CrossEntropy objective_;
  const engine::Consensus alone_;
  OomGuard guard_{run_.training(), device_, alone_, [this](const std::string& reason, const engine::StepLayout& next) {
                    reason_ = reason;
                    tried_.push_back(next);
                  }};
};

/// A kernel's code is loaded at its first launch, and there may be no room: cudaErrorMemoryAllocation, which is no
/// c10::OutOfMemoryError. Behind the first launch that changes a weight nothing can be done again.
TEST_F(FaultyCardTest, ALaunchThatFindsNoMemoryIsDoneAgainUntilWeightsChange) {
  card().reset();
  step();
  const uint64_t launches = counters().launches;
  int64_t again = 0;
  int64_t half_done = 0;
  std::vector<uint64_t> places{launches - 1};  // the update's own few launches are the last
  for (uint64_t place = 0; place < launches - 1; place += 1 + launches / 60) places.push_back(place);
  std::ranges::sort(places);
  for (const uint64_t place : places) {
    card().fail_calls(vgpu::Fallible::kLaunch, place, 1);
    try {
      const DoneStep done = step();
      EXPECT_EQ(done.failed_attempts, 1) << place;
      EXPECT_EQ(done.layout, layout_) << "an emptied cache is all that a driver needs";
      EXPECT_EQ(reason_, "CUDA error: out of memory");
      EXPECT_EQ(half_done, 0) << place << " of " << launches;
      ++again;
    } catch (const engine::UpdateHalfDone& error) {
      EXPECT_EQ(error.code(), ExitCode::kFailed);
      EXPECT_TRUE(tried_.empty());
      ++half_done;
    }
  }
  EXPECT_GT(again, 30);
  EXPECT_GT(half_done, 0);
}

/// What makes room launches nothing that could fail too: the launch that fails next is the first of the step that is
/// done again.
TEST_F(FaultyCardTest, MakingRoomTakesNoKernel) {
  card().reset();
  step();
  const uint64_t launches = counters().launches;
  int64_t twice = 0;
  // The update's own few launches are the last.
  for (uint64_t place = 0; place < launches * 19 / 20; place += 1 + launches / 40) {
    card().fail_calls(vgpu::Fallible::kLaunch, place, 2);
    EXPECT_EQ(step().failed_attempts, 2) << place;
    ++twice;
  }
  EXPECT_GT(twice, 30);
  card().fail_calls(vgpu::Fallible::kLaunch, launches - 1, 2);
  EXPECT_THROW(step(), engine::UpdateHalfDone);
}

TEST_F(FaultyCardTest, ADriverThatFindsNoMemoryTwiceGetsSmallerMicroBatches) {
  card().fail_calls(vgpu::Fallible::kLaunch, 0, 2);
  const DoneStep done = step();
  EXPECT_EQ(done.failed_attempts, 2);
  EXPECT_EQ(done.layout.cut.sizes, (std::vector<int64_t>{2, 2, 2, 2}));
}

TEST_F(FaultyCardTest, ADeviceThatFailsForGoodIsNotTriedForEver) {
  card().fail_calls(vgpu::Fallible::kLaunch, 0, uint64_t{1} << 40);
  try {
    step();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_NE(std::string(error.what()).find("no sample is to blame"), std::string::npos) << error.what();
  }
  EXPECT_LE(tried_.size(), 4U);
  card().fail_calls(vgpu::Fallible::kLaunch, 0, 0);
  EXPECT_EQ(step().failed_attempts, 0);
}

/// LibTorch makes a handle for each thread.
TEST_F(FaultyCardTest, CublasWithoutMemoryForItsHandleIsAskedAgain) {
  card().fail_calls(vgpu::Fallible::kCublasCreate, 0, 1);
  int64_t failed_attempts = -1;
  std::thread([&] { failed_attempts = step().failed_attempts; }).join();
  EXPECT_EQ(failed_attempts, 1);
  EXPECT_NE(reason_.find("CUBLAS_STATUS_ALLOC_FAILED"), std::string::npos) << reason_;
}

TEST_F(FaultyCardTest, WithoutPinnedMemoryCopiesWait) {
  memory::release_pinned(device_);
  card().reset();
  card().fail_calls(vgpu::Fallible::kHostAllocation, 0, uint64_t{1} << 40);
  const DoneStep done = step();
  EXPECT_EQ(done.failed_attempts, 0);
  EXPECT_GT(counters().host_to_device_pageable.calls, 0U);
  EXPECT_EQ(counters().host_allocations, 0U);
  engine::AsyncScalars numbers(done.result.numbers);
  EXPECT_EQ(std::ssize(numbers.read()), done.result.numbers.numel());
}

/// Other processes may fill the card.
TEST_F(FaultyCardTest, AFullCardIsOutOfMemoryToo) {
  memory::release_unused(device_);
  card().fail_calls(vgpu::Fallible::kDeviceAllocation, 0, 4);
  const DoneStep done = step();
  EXPECT_GT(done.failed_attempts, 0);
  EXPECT_NE(reason_.find("CUDA out of memory"), std::string::npos) << reason_;
}

}  // namespace
}  // namespace vlmtrain::train

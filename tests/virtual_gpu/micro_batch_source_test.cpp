#include "engine/micro_batch_source.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <vector>

#include "virtual_gpu/card.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::engine {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Three micro-batches of a sample each, whose pixels take 48 MiB.
class MicroBatchSourceTest : public testing::Test {
 protected:
  MicroBatchSourceTest() {
    layout_.cut = cut_in_order({1, 1, 1});
    memory::release_unused(device_);
    card().reset();
  }
  ~MicroBatchSourceTest() override { memory::release_unused(device_); }

  static data::Sample sample() {
    auto sample = data::sample_of({.tokens = 100,
                                   .label_tokens = 10,
                                   .image_tokens = 64,
                                   .images = 1,
                                   .pixel_rows = 16,
                                   .row = {.channels = 3, .height = 512, .width = 512}});
    sample.pixel_values = at::empty(sample.pixel_values.sizes());
    return sample;
  }

  int64_t allocated() const { return memory::device_memory(device_).allocated_bytes / kMiB; }

  const at::Device device_ = memory::open_device("cuda");
  const CrossEntropy objective_;
  const std::vector<data::Sample> samples_{sample(), sample(), sample()};
  const StepInput input_ = step_input(objective_, samples_);
  StepLayout layout_;
};

TEST_F(MicroBatchSourceTest, TwoAreThereWhileOneComputes) {
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_TRUE(batch.pixel_values.is_cuda());
    EXPECT_EQ(allocated() - before, i < 2 ? 96 : 48) << i;
  }
  EXPECT_EQ(allocated(), before);
  const auto done = counters();
  EXPECT_EQ(done.stream_waits, 4U);
  EXPECT_EQ(done.early_copies_beside, 0U);
  EXPECT_EQ(done.copies_beside.calls, done.host_to_device_pinned.calls * 2 / 3);
  EXPECT_EQ(done.host_to_device_pageable.calls, 0U);
  EXPECT_EQ(done.stream_synchronizations + done.event_synchronizations + done.device_synchronizations, 0U);
}

TEST_F(MicroBatchSourceTest, OneIsThereWhereNothingIsCopiedAhead) {
  layout_.copies_ahead = false;
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_EQ(allocated() - before, 48) << i;
  }
  EXPECT_EQ(counters().stream_waits, 0U);
  EXPECT_EQ(counters().copies_beside.calls, 0U);
}

/// What was copied and never asked for is freed behind its copies: the computation waits for them.
TEST_F(MicroBatchSourceTest, AStepThatEndsHalfWayWaitsForWhatIsUnderWay) {
  const int64_t before = allocated();
  {
    MicroBatchSource source(input_, layout_, device_);
    source.next();
  }
  EXPECT_EQ(counters().stream_waits, 2U);
  EXPECT_EQ(allocated(), before);
}

TEST_F(MicroBatchSourceTest, WithoutRoomForTwoEachIsCopiedWhenItIsNeeded) {
  const int64_t taken = memory::free_bytes(device_) - 80 * kMiB;
  const at::Tensor filled = at::empty({taken}, at::TensorOptions(at::kByte).device(device_));
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_TRUE(batch.pixel_values.is_cuda());
    EXPECT_EQ(allocated() - before, 48) << i;
  }
  EXPECT_GT(counters().failed_allocations, 0U);
}

}  // namespace
}  // namespace vlmtrain::engine

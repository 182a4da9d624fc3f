#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/step/pass.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::engine {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Three micro-batches of one sample, whose pixels take 48 MiB.
class MicroBatchSourceTest : public testing::Test {
 protected:
  MicroBatchSourceTest() {
    layout_.split = split_in_order({1, 1, 1});
    memory::empty_cache(device_);
    virtual_gpu().reset();
  }
  ~MicroBatchSourceTest() override { memory::empty_cache(device_); }

  static data::Sample make_sample() {
    auto make_sample = data::make_meta_sample({.tokens = 100,
                                               .label_tokens = 10,
                                               .image_tokens = 64,
                                               .num_images = 1,
                                               .pixel_rows = 16,
                                               .row = {.channels = 3, .height = 512, .width = 512}});
    make_sample.pixel_values = at::empty(make_sample.pixel_values.sizes());
    return make_sample;
  }

  int64_t allocated_mib() const { return memory::get_device_memory_stats(device_).allocated_bytes / kMiB; }

  const at::Device device_ = memory::open_device("cuda");
  const CrossEntropyObjective objective_;
  const std::vector<data::Sample> samples_{make_sample(), make_sample(), make_sample()};
  const StepInput input_ = make_step_input(objective_, samples_);
  StepLayout layout_;
};

TEST_F(MicroBatchSourceTest, PrefetchesOneMicroBatch) {
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated_mib();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_TRUE(batch.pixel_values.is_cuda());
    EXPECT_EQ(allocated_mib() - before, i < 2 ? 96 : 48) << i;
  }
  EXPECT_EQ(allocated_mib(), before);
  const auto result = counters();
  EXPECT_EQ(result.num_stream_waits, 4U);
  EXPECT_EQ(result.num_early_side_stream_copies, 0U);
  EXPECT_EQ(result.side_stream_copies.num_calls, result.host_to_device_pinned.num_calls * 2 / 3);
  EXPECT_EQ(result.host_to_device_pageable.num_calls, 0U);
  EXPECT_EQ(result.num_stream_synchronizations + result.num_event_synchronizations + result.num_device_synchronizations,
            0U);
}

TEST_F(MicroBatchSourceTest, CopiesOneMicroBatchWithoutPrefetch) {
  layout_.copies_ahead = false;
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated_mib();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_EQ(allocated_mib() - before, 48) << i;
  }
  EXPECT_EQ(counters().num_stream_waits, 0U);
  EXPECT_EQ(counters().side_stream_copies.num_calls, 0U);
}

/// A copied micro-batch that is never requested is freed after its copies, for which the
/// computation waits.
TEST_F(MicroBatchSourceTest, AbortedStepWaitsForPendingCopies) {
  const int64_t before = allocated_mib();
  {
    MicroBatchSource source(input_, layout_, device_);
    source.next();
  }
  EXPECT_EQ(counters().num_stream_waits, 2U);
  EXPECT_EQ(allocated_mib(), before);
}

TEST_F(MicroBatchSourceTest, CopiesOnDemandWithoutMemoryForTwo) {
  const int64_t filled_bytes = memory::get_free_device_bytes(device_) - 80 * kMiB;
  const at::Tensor filled = at::empty({filled_bytes}, at::TensorOptions(at::kByte).device(device_));
  MicroBatchSource source(input_, layout_, device_);
  const int64_t before = allocated_mib();
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = source.next();
    EXPECT_TRUE(batch.pixel_values.is_cuda());
    EXPECT_EQ(allocated_mib() - before, 48) << i;
  }
  EXPECT_GT(counters().num_failed_allocations, 0U);
}

}  // namespace
}  // namespace vlmtrain::engine

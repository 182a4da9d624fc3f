#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/event_recorder.h"
#include "train/loop/watches.h"

namespace vlmtrain::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytesPerMiB = 1 << 20;
constexpr int64_t kHostLimit = 10'000 * kBytesPerMiB;

/// Uses the CPU as the device: allocations of its steps are real, the memory that they report is
/// not.
class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest() { callbacks_.add(std::make_unique<EventRecorder>(events_)); }

  /// Keeps one megabyte of the optimizer and less of the gradients; the largest allocation is freed
  /// at its end.
  void step(int64_t in_use_bytes, int64_t host_bytes) {
    ++step_;
    watch_.on_step_start();
    {
      const memory::ComponentScope language(memory::Component::kLanguage);
      at::empty({8 * kBytesPerMiB}, at::kByte);
    }
    allocate(memory::Component::kGradients, kBytesPerMiB / 4);
    allocate(memory::Component::kOptimizer, kBytesPerMiB);
    StepReport report;
    report.metrics.step = step_;
    report.metrics.allocated_bytes = in_use_bytes;
    report.metrics.host_bytes = host_bytes;
    watch_.observe_step(report);
  }
  /// Reports a step of a GPU of which other processes hold a part.
  void step_on_gpu(int64_t reserved_peak_bytes, int64_t reserved_bytes, int64_t free_bytes) {
    StepReport report;
    report.metrics.step = ++step_;
    report.metrics.reserved_peak_bytes = reserved_peak_bytes;
    report.metrics.reserved_bytes = reserved_bytes;
    report.metrics.device_free_bytes = free_bytes;
    watch_.observe_step(report);
  }

  std::vector<report::RunEvent> events_;

 private:
  void allocate(memory::Component component, int64_t bytes) {
    const memory::ComponentScope scope(component);
    kept_tensors_.push_back(at::empty({bytes}, at::kByte));
  }

  CallbackList callbacks_;
  MemoryWatch watch_{at::kCPU, kHostLimit, callbacks_};
  std::vector<at::Tensor> kept_tensors_;
  int64_t step_ = 0;
};

TEST_F(MemoryWatchTest, NamesTheGrowingComponent) {
  for (int64_t i = 0; i < 120; ++i) step((100 + i) * kBytesPerMiB, 0);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].kind, report::EventKind::kMemoryGrowth);
  EXPECT_THAT(events_[0].message, AllOf(HasSubstr("device memory in use between steps grows by 1"),
                                        testing::EndsWith("the growth is in: optimizer")));
}

TEST_F(MemoryWatchTest, ReportsHostMemoryGrowth) {
  for (int64_t i = 0; i < 120; ++i) step(100 * kBytesPerMiB, (1000 + 20 * i) * kBytesPerMiB);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_THAT(events_[0].message, HasSubstr("host memory grows by 2"));
}

TEST_F(MemoryWatchTest, ReportsAFullDeviceOnce) {
  step_on_gpu(94 * kBytesPerMiB, 90 * kBytesPerMiB, 10 * kBytesPerMiB);
  EXPECT_TRUE(events_.empty());
  for (int i = 0; i < 5; ++i) step_on_gpu(96 * kBytesPerMiB, 90 * kBytesPerMiB, 10 * kBytesPerMiB);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].kind, report::EventKind::kMemoryFull);
  EXPECT_EQ(events_[0].step, 2);
  EXPECT_THAT(events_[0].message, HasSubstr("(96 %)"));
  step_on_gpu(92 * kBytesPerMiB, 90 * kBytesPerMiB, 10 * kBytesPerMiB);
  step_on_gpu(97 * kBytesPerMiB, 90 * kBytesPerMiB, 10 * kBytesPerMiB);
  EXPECT_EQ(events_.size(), 1U) << "it was not clearly less meanwhile";
  step_on_gpu(89 * kBytesPerMiB, 80 * kBytesPerMiB, 20 * kBytesPerMiB);
  step_on_gpu(97 * kBytesPerMiB, 90 * kBytesPerMiB, 10 * kBytesPerMiB);
  EXPECT_EQ(events_.size(), 2U);
}

TEST_F(MemoryWatchTest, ReportsAFullHostOnce) {
  for (int i = 0; i < 5; ++i) step(100 * kBytesPerMiB, kHostLimit / 100 * 96);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].kind, report::EventKind::kMemoryFull);
  EXPECT_THAT(events_[0].message,
              HasSubstr("available to this process are used (96 %); above that, the system kills the process"));
}

TEST_F(MemoryWatchTest, IgnoresAnUnknownLimit) {
  StepReport report;  // a step of the CPU, without figures of the host
  report.metrics.host_bytes = kHostLimit;
  CallbackList callbacks;
  callbacks.add(std::make_unique<EventRecorder>(events_));
  MemoryWatch(at::kCPU, 0, callbacks).observe_step(report);
  EXPECT_TRUE(events_.empty());
}

TEST_F(MemoryWatchTest, StaysQuietAtAConstantLevel) {
  for (int64_t i = 0; i < 120; ++i) step(100 * kBytesPerMiB, 1000 * kBytesPerMiB);
  EXPECT_TRUE(events_.empty());
}

}  // namespace

}  // namespace vlmtrain::train

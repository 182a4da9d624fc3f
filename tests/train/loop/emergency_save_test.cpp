#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "base/captured_log.h"
#include "train/loop/run_saver.h"
#include "train/small_run.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

[[noreturn]] void break_device() {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
}

TEST(EmergencySaveTest, ExplainsWhySavingIsUnsafe) {
  const std::runtime_error error("something else");
  EXPECT_THAT(find_unsafe_save_reason(error, {}), IsEmpty());
  EXPECT_THAT(find_unsafe_save_reason(error, {.is_saving = true}), HasSubstr("while a checkpoint was written"));
  EXPECT_THAT(find_unsafe_save_reason(error, {.are_weights_consistent = false}),
              HasSubstr("while the weights were updated"));
  EXPECT_THAT(find_unsafe_save_reason(error, {.are_metrics_lost = true}), HasSubstr("the last step is unknown"));
  try {
    break_device();
  } catch (const std::exception& failure) {
    EXPECT_THAT(find_unsafe_save_reason(failure, {}), HasSubstr("the device failed"));
  }
}

/// Makes one allocation of a run's second step fail.
class FailingAllocation final : public memory::AllocationWatcher {
 public:
  /// The allocation is the middle one in `component`, by the count of the first step.
  FailingAllocation(memory::Component component, std::function<void()> fail, const CapturedLog& log)
      : component_(component), fail_(std::move(fail)), log_(log) {}

  void on_allocate(int64_t /*bytes*/) override {
    const auto component = memory::get_current_memory_tag().component;
    if (memory::is_in_backward() || component == memory::Component::kOther) return;
    // Dry runs of steps come before.
    if (step_ == 0 && log_.text().find("usable samples; 3 steps") == std::string::npos) return;
    if (step_ == 0) begin_step();
    if (last_component_ == memory::Component::kOptimizer && component != last_component_) begin_step();
    last_component_ = component;
    if (component != component_ || ++allocations_ != first_step_allocations_ / 2 || step_ != 2 || failed_) return;
    failed_ = true;
    fail_();
  }
  void on_free(int64_t /*bytes*/) noexcept override {}

  bool failed() const { return failed_; }

 private:
  void begin_step() {
    if (++step_ == 2) first_step_allocations_ = allocations_;
    allocations_ = 0;
  }

  memory::Component component_;
  std::function<void()> fail_;
  const CapturedLog& log_;
  memory::Component last_component_ = memory::Component::kOther;
  int64_t allocations_ = 0;
  int64_t first_step_allocations_ = -1;
  int64_t step_ = 0;
  bool failed_ = false;
};

/// A run on the CPU in this process that ends by an error in its second step.
class FailingRunTest : public SmallRunTest {
 protected:
  /// Returns the log.
  template <class Error>
  std::string fail(memory::Component component, std::function<void()> failure) const {
    const CapturedLog log;
    const auto watcher = std::make_shared<FailingAllocation>(component, std::move(failure), log);
    memory::watch_allocations(watcher);
    EXPECT_THROW(run_training(), Error);
    memory::unwatch_allocations(*watcher);
    EXPECT_TRUE(watcher->failed());
    return log.text();
  }
};

TEST_F(FailingRunTest, SavesACheckpointAfterAnError) {
  const std::string log =
      fail<std::runtime_error>(memory::Component::kLanguage, [] { throw std::runtime_error("no luck"); });
  EXPECT_THAT(log, HasSubstr("step 1 is saved ("));
  EXPECT_THAT(checkpoints(), testing::ElementsAre("step-1"));
}

TEST_F(FailingRunTest, SavesNothingAfterADeviceError) {
  const std::string log = fail<c10::AcceleratorError>(memory::Component::kLanguage, break_device);
  EXPECT_THAT(log, AllOf(HasSubstr("the steps since the last checkpoint are not saved: the device failed"),
                         Not(HasSubstr("is saved"))));
  EXPECT_THAT(checkpoints(), IsEmpty());
  const auto last = read_json_lines("events.jsonl").back();
  EXPECT_EQ(last["kind"], "failed");
  EXPECT_EQ(last["message"], "CUDA error: an illegal memory access") << "without LibTorch's trace";
}

}  // namespace

}  // namespace vlmtrain::train

#include "train/callbacks/callback_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace vlmtrain::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kNap{30};

/// Takes its time over each step and each event, and raises an event at each step.
class SlowCallback final : public Callback {
 public:
  SlowCallback(std::string name, CallbackList& all, std::vector<std::string>& heard)
      : name_(std::move(name)), all_(all), heard_(heard) {}

  void on_step(const StepReport& /*step*/) override {
    std::this_thread::sleep_for(kNap);
    heard_.push_back(name_ + " step");
    if (name_ == "first") all_.event({});
  }
  void on_event(const report::Event& /*event*/) override {
    std::this_thread::sleep_for(kNap);
    heard_.push_back(name_ + " event");
  }

 private:
  std::string name_;
  CallbackList& all_;
  std::vector<std::string>& heard_;
};

TEST(CallbackListTest, CallsInOrderAndCountsTheTimeOnce) {
  CallbackList callbacks;
  std::vector<std::string> heard;
  for (const auto* const name : {"first", "second"}) {
    callbacks.add(std::make_unique<SlowCallback>(name, callbacks, heard));
  }
  EXPECT_EQ(callbacks.seconds(), 0);
  const auto start = Clock::now();
  callbacks.step({});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_THAT(heard, testing::ElementsAre("first step", "first event", "second event", "second step"));
  EXPECT_GE(callbacks.seconds(), 4 * std::chrono::duration<double>(kNap).count());
  EXPECT_LE(callbacks.seconds(), seconds) << "an event within a step is not counted again";
}

}  // namespace
}  // namespace vlmtrain::train

#include "train/callbacks/callback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace vlmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kNap{30};

/// Takes its time over each step and each event.
class SlowCallback final : public Callback {
 public:
  SlowCallback(std::string name, std::vector<std::string>& recorded) : name_(std::move(name)), recorded_(recorded) {}

  void on_step(const StepReport& /*step*/) override {
    std::this_thread::sleep_for(kNap);
    recorded_.push_back(name_ + " step");
  }
  void on_event(const report::Event& /*event*/) override {
    std::this_thread::sleep_for(kNap);
    recorded_.push_back(name_ + " event");
  }

 private:
  std::string name_;
  std::vector<std::string>& recorded_;
};

TEST(CallbackListTest, CallsInOrderAndCountsTheTimeOnce) {
  CallbackList callbacks;
  std::vector<std::string> recorded;
  for (const auto* const name : {"first", "second"}) {
    callbacks.add(std::make_unique<SlowCallback>(name, recorded));
  }
  EXPECT_EQ(callbacks.seconds(), 0);
  const auto start = Clock::now();
  callbacks.on_step({});
  callbacks.on_event({});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_THAT(recorded, testing::ElementsAre("first step", "second step", "first event", "second event"));
  EXPECT_GE(callbacks.seconds(), 4 * std::chrono::duration<double>(kNap).count());
  EXPECT_LE(callbacks.seconds(), seconds);
}

}  // namespace

}  // namespace vlmtrain::train

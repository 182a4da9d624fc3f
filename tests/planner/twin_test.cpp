#include "vlmtrain/planner/twin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "planner/rehearsal.h"

namespace vlmtrain::planner {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr auto kPatience = seconds(60);
constexpr int64_t kSamples = 4;

/// A small model whose steps have samples of changing size.
class TwinTest : public testing::Test {
 protected:
  TwinTest() {
    for (int64_t step = 0; step < 8; ++step) {
      steps_.push_back({{shape(1 + step % 3), 2}, {shape(1), 1}, {shape(step % 2 == 0 ? 4 : 2), 1}});
    }
  }

  data::SampleShape shape(int64_t images) const {
    return model_.shape({.images = images, .image_width = 600, .image_height = 400});
  }

  TwinStep twin_step(int64_t step, int64_t limit_bytes = kUnlimited) const {
    return {.step = step,
            .samples = steps_[static_cast<size_t>(step)],
            .layout = layout_of(choices_, steps_[static_cast<size_t>(step)]),
            .release_first = false,
            .limit_bytes = limit_bytes};
  }

  const PresetFolder model_{"smolvlm-256m"};
  const VirtualCard card_{.gpu = "h100", .memory_bytes = kUnlimited};
  const Choices choices_ = micro_batches_of(2);
  std::vector<std::vector<SampleGroup>> steps_;
};

TEST_F(TwinTest, ForeseesWhatARunOfTheSameStepsTakes) {
  RehearsalProcess process(model_.job(), card_);
  const Outcome run = process.rehearse({.choices = choices_, .steps = steps_});
  Twin twin(model_.job(), choices_, card_);
  for (int64_t step = 0; step < std::ssize(steps_); ++step) twin.announce(twin_step(step));
  for (int64_t step = 0; step < std::ssize(steps_); ++step) {
    const auto foreseen = twin.foresight(step, kPatience);
    ASSERT_TRUE(foreseen) << twin.failure().value_or("late");
    EXPECT_TRUE(foreseen->fits);
    EXPECT_EQ(foreseen->attempts, 1);
    EXPECT_EQ(foreseen->layout, twin_step(step).layout);
    EXPECT_EQ(foreseen->peaks.allocated_bytes, run.steps[static_cast<size_t>(step)].allocated_bytes) << step;
    EXPECT_EQ(foreseen->peaks.reserved_bytes, run.steps[static_cast<size_t>(step)].reserved_bytes) << step;
  }
}

/// The twin's model lies in more segments than those after which its card says that it has all that can be asked for; a
/// limit is a share of what it said before.
TEST_F(TwinTest, ALimitIsAShareOfWhatTheCardSaysAtFirst) {
  constexpr int64_t kCard = 80'000'000'000;
  Twin twin(model_.job(), choices_, {.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = kCard});
  twin.announce(twin_step(0, kCard - kCard / 10));
  const auto foreseen = twin.foresight(0, kPatience);
  ASSERT_TRUE(foreseen) << twin.failure().value_or("late");
  EXPECT_TRUE(foreseen->fits);
  EXPECT_EQ(foreseen->attempts, 1);
}

TEST_F(TwinTest, CutsOnlyWhatDoesNotFit) {
  Twin twin(model_.job(), choices_, card_);
  twin.announce(twin_step(0));
  const auto ample = twin.foresight(0, kPatience);
  ASSERT_TRUE(ample);
  // The last sample of step 0 has four images; alone it takes less than with the one before it.
  int64_t limit = ample->peaks.reserved_bytes;
  std::optional<Foresight> cut;
  for (int64_t step = 2; !cut && step < 8; step += 2) {
    limit -= 64 * kMiB;
    TwinStep tight = twin_step(0, limit);
    tight.step = step;
    twin.announce(tight);
    const auto foreseen = twin.foresight(step, kPatience);
    ASSERT_TRUE(foreseen);
    EXPECT_TRUE(foreseen->fits);
    EXPECT_LE(foreseen->peaks.reserved_bytes, limit);
    if (foreseen->layout != tight.layout) cut = foreseen;
  }
  ASSERT_TRUE(cut);
  EXPECT_TRUE(cut->release_first);
  EXPECT_GT(cut->attempts, 1);
  EXPECT_THAT(cut->layout.cut.sizes, testing::ElementsAre(2, 1, 1));
}

TEST_F(TwinTest, GivesUpCopiesAheadBeforeItCuts) {
  steps_.assign(8, {{shape(4), 2}, {shape(1), 2}});
  Twin twin(model_.job(), choices_, card_);
  twin.announce(twin_step(0));
  twin.announce(twin_step(1));
  ASSERT_TRUE(twin.foresight(0, kPatience));
  int64_t limit = twin.foresight(1, kPatience)->peaks.reserved_bytes;
  for (int64_t step = 2; step < 8; ++step) {
    limit -= 16 * kMiB;
    TwinStep tight = twin_step(step, limit);
    twin.announce(tight);
    const auto foreseen = twin.foresight(step, kPatience);
    ASSERT_TRUE(foreseen && foreseen->fits);
    if (foreseen->layout == tight.layout) continue;
    EXPECT_FALSE(foreseen->layout.copies_ahead);
    EXPECT_EQ(foreseen->layout.cut, tight.layout.cut);
    return;
  }
  FAIL() << "an emptied cache was enough";
}

/// A margin lowers the twin's limit, not the run's. Near its limit an allocator empties its cache in the middle of a
/// step and needs less than one with room: no such step is foreseen.
TEST(TwinNearItsLimitTest, ForeseesWhatARunWithMoreRoomTakes) {
  const PresetFolder model("smolvlm-tiny");
  const VirtualCard card{.gpu = "rtx4090", .memory_bytes = kUnlimited};
  const Choices choices = micro_batches_of(8);
  std::mt19937 random(6);
  const auto mixed_step = [&](int64_t number, int64_t limit_bytes) {
    TwinStep step{.step = number, .samples = {}, .layout = {}, .release_first = false, .limit_bytes = limit_bytes};
    for (int64_t sample = 0; sample < 16; ++sample) {
      step.samples.push_back({model.shape({.images = static_cast<int64_t>(random() % 5),
                                           .image_width = 300 + static_cast<int64_t>(random() % 700),
                                           .image_height = 200 + static_cast<int64_t>(random() % 1000),
                                           .text_tokens = 70 + static_cast<int64_t>(random() % 400)}),
                              1});
    }
    step.layout = layout_of(choices, step.samples);
    return step;
  };
  Twin twin(model.job(), choices, card);
  Twin run(model.job(), choices, card);  // does what it is told: nothing is too large for it
  int64_t cut_steps = 0;
  for (int64_t number = 1; number <= 100; ++number) {
    TwinStep step = mixed_step(number, 84 * kMiB);
    twin.announce(step);
    const auto foreseen = twin.foresight(number, kPatience);
    ASSERT_TRUE(foreseen && foreseen->fits) << number;
    if (foreseen->layout != step.layout) ++cut_steps;
    step.layout = foreseen->layout;
    step.release_first = foreseen->release_first;
    step.limit_bytes = kUnlimited;
    run.announce(step);
    const auto done = run.foresight(number, kPatience);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->peaks.reserved_bytes, foreseen->peaks.reserved_bytes) << number;
    EXPECT_EQ(done->peaks.allocated_bytes, foreseen->peaks.allocated_bytes) << number;
  }
  EXPECT_GT(cut_steps, 5);
  EXPECT_LT(cut_steps, 90);
}

TEST_F(TwinTest, SaysWhereNothingFitsAndGoesOn) {
  Twin twin(model_.job(), choices_, card_);
  twin.announce(twin_step(0, 64 * kMiB));
  twin.announce(twin_step(1));
  const auto nothing = twin.foresight(0, kPatience);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(nothing->fits);
  const auto next = twin.foresight(1, kPatience);
  ASSERT_TRUE(next);
  EXPECT_TRUE(next->fits);
}

TEST_F(TwinTest, DoesNotWaitForAnAnswerLongerThanAsked) {
  Twin twin(model_.job(), choices_, card_);
  twin.announce(twin_step(0));
  EXPECT_FALSE(twin.foresight(0, std::chrono::milliseconds(1)));  // the child is not even up
  EXPECT_TRUE(twin.foresight(0, kPatience));
}

TEST_F(TwinTest, TellsWhyItEnded) {
  Job broken = model_.job();
  broken.model = "/nowhere";
  Twin twin(broken, choices_, card_);
  twin.announce(twin_step(0));
  EXPECT_FALSE(twin.foresight(0, kPatience));
  ASSERT_TRUE(twin.failure());
  EXPECT_THAT(*twin.failure(), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace vlmtrain::planner

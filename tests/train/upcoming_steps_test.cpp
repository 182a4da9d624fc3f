#include "train/upcoming_steps.h"

#include <gtest/gtest.h>

#include <set>

#include "data/fake_processor.h"
#include "planner/rehearsal.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

class UpcomingStepsTest : public testing::Test {
 protected:
  static constexpr int64_t kSamples = 11;

  UpcomingSteps steps(TwinLink* twin) { return {loader_, choices_, tasks_, twin, 1, 8}; }

  void replace(UpcomingSteps& upcoming, PlannedStep& step, int64_t place) {
    const int64_t lost = step.batch.samples[static_cast<size_t>(place)].index;
    ledger_.mark_dropped(lost, "s", "does not fit into memory", "is too large");
    upcoming.replace(step, {lost});
  }

  const planner::Choices choices_ = planner::micro_batches_of(2);

 private:
  const io::RecordList records_ = data::make_records(kSamples);
  const data::FakeProcessor processor_;
  const TaskBalance tasks_{{}, data::Tasks(records_)};
  data::Ledger ledger_{"train.json", kSamples};
  data::OneLaneLoader loader_{
      records_, processor_, {.global_batch_size = 4, .on_bad_sample = data::BadSamplePolicy::kSkip}, 2, {}, ledger_};
};

TEST_F(UpcomingStepsTest, ASampleThatIsTakenOutIsReplacedByTheNextOfTheOrder) {
  UpcomingSteps upcoming = steps(/*twin=*/nullptr);
  std::vector<int64_t> drawn;
  int64_t lost = -1;
  for (int64_t number = 1; number <= 8; ++number) {
    PlannedStep step = upcoming.next(0);
    EXPECT_EQ(step.step, number);
    if (number == 2) {
      lost = step.batch.samples[2].index;
      replace(upcoming, step, 2);
    }
    ASSERT_EQ(step.batch.samples.size(), 4U) << "step " << number;
    EXPECT_EQ(step.batch.label_tokens, 4);
    EXPECT_EQ(step.plan.layout, step.layout);
    EXPECT_EQ(step.layout.cut.sizes, (std::vector<int64_t>{2, 2}));
    for (const auto& sample : step.batch.samples) drawn.push_back(sample.index);
  }
  std::vector<int64_t> wanted;
  for (int64_t epoch = 0; wanted.size() < drawn.size(); ++epoch) {
    for (const int64_t index : data::epoch_order(kSamples, 2, epoch)) {
      if (index != lost) wanted.push_back(index);
    }
  }
  wanted.resize(drawn.size());
  EXPECT_EQ(drawn, wanted);
}

/// A real twin, which had been told of the next two steps when a sample was replaced: what it foresees of them is of
/// other samples. Then both begin with an empty cache, and it is believed again.
TEST_F(UpcomingStepsTest, ATwinThatWasToldOfOtherSamplesIsNotBelieved) {
  constexpr int64_t kReplaced = 3;
  const planner::PresetFolder model("smolvlm-tiny");
  TwinLink twin({.job = model.job(),
                 .choices = choices_,
                 .card = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                 .limit_bytes = planner::kUnlimited,
                 .waits = true},
                at::kCPU, [](report::EventKind, const std::string&) {});
  UpcomingSteps upcoming = steps(&twin);
  for (int64_t number = 1; number <= 8; ++number) {
    PlannedStep step = upcoming.next(0);
    const bool is_outdated = number > kReplaced && number <= kReplaced + 2;
    EXPECT_EQ(step.plan.peaks.has_value(), !is_outdated) << number;
    EXPECT_EQ(step.plan.release_first, number == kReplaced + 3) << number;
    if (number == kReplaced) {
      replace(upcoming, step, 1);
      EXPECT_FALSE(step.plan.peaks) << "it is another step now";
    }
    EXPECT_EQ(step.batch.samples.size(), 4U) << number;
    EXPECT_EQ(step.plan.layout, step.layout) << number;
  }
  EXPECT_EQ(twin.summary().steps, 8) << "it answered each time";
}

/// A twin is told of steps ahead, so that a bad sample of one of them is known before it is its turn. Where a sample of
/// the step before is replaced, the samples drawn ahead would be drawn again.
TEST(UpcomingStepsWithABadSampleTest, TheErrorIsNotLostWhereASampleIsReplaced) {
  constexpr int64_t kSamples = 12;
  constexpr uint64_t kSeed = 2;
  const int64_t bad = data::epoch_order(kSamples, kSeed, 0)[9];  // of the third step
  const data::FakeProcessor processor([bad](int64_t index) {
    if (index == bad) data::reject(index);
  });
  const auto records = data::make_records(kSamples);
  const TaskBalance tasks({}, data::Tasks(records));
  data::Ledger ledger("train.json", kSamples);
  data::OneLaneLoader loader(
      records, processor, {.global_batch_size = 4, .on_bad_sample = data::BadSamplePolicy::kFail}, kSeed, {}, ledger);
  const planner::PresetFolder model("smolvlm-tiny");
  const planner::Choices choices = planner::micro_batches_of(2);
  TwinLink twin({.job = model.job(),
                 .choices = choices,
                 .card = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                 .limit_bytes = planner::kUnlimited,
                 .waits = true},
                at::kCPU, [](report::EventKind, const std::string&) {});
  UpcomingSteps upcoming(loader, choices, tasks, &twin, 1, 8);
  PlannedStep first = upcoming.next(0);
  EXPECT_THROW(upcoming.replace(first, {first.batch.samples.front().index}), UserError);
}

}  // namespace
}  // namespace vlmtrain::train

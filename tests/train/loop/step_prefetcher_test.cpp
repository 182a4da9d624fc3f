#include <gtest/gtest.h>

#include <set>

#include "data/fake_processor.h"
#include "planner/dry_run.h"
#include "train/loop/step_runner.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

class StepPrefetcherTest : public testing::Test {
 protected:
  static constexpr int64_t kSamples = 11;

  StepPrefetcher make_prefetcher(LookAheadClient* look_ahead) {
    return {loader_, step_config_, tasks_, look_ahead, 1, 8};
  }

  void replace(StepPrefetcher& prefetcher, PlannedStep& step, int64_t position) {
    const int64_t dropped = step.batch.samples[static_cast<size_t>(position)].index;
    ledger_.mark_dropped(dropped, "s", "does not fit into memory", "is too large");
    prefetcher.replace_samples(step, {dropped});
  }

  const planner::StepConfig step_config_ = planner::make_step_config(2);

 private:
  const io::InMemoryRecords records_ = data::make_records(kSamples);
  const data::FakeProcessor processor_;
  const TaskBalancer tasks_{{}, data::TaskTable(records_)};
  data::Ledger ledger_{"train.json", kSamples};
  data::SingleSourceLoader loader_{
      records_, processor_, {.global_batch_size = 4, .on_bad_sample = data::BadSamplePolicy::kSkip}, 2, {}, ledger_};
};

TEST_F(StepPrefetcherTest, ReplacesADroppedSampleByTheNextOne) {
  StepPrefetcher prefetcher = make_prefetcher(/*look_ahead=*/nullptr);
  std::vector<int64_t> used_indices;
  int64_t dropped = -1;
  for (int64_t number = 1; number <= 8; ++number) {
    PlannedStep step = prefetcher.next(0);
    EXPECT_EQ(step.step, number);
    if (number == 2) {
      dropped = step.batch.samples[2].index;
      replace(prefetcher, step, 2);
    }
    ASSERT_EQ(step.batch.samples.size(), 4U) << "step " << number;
    EXPECT_EQ(step.batch.label_tokens, 4);
    EXPECT_EQ(step.plan.layout, step.layout);
    EXPECT_EQ(step.layout.split.sizes, (std::vector<int64_t>{2, 2}));
    for (const auto& sample : step.batch.samples) used_indices.push_back(sample.index);
  }
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; expected.size() < used_indices.size(); ++epoch) {
    for (const int64_t index : data::shuffle_epoch(kSamples, 2, epoch)) {
      if (index != dropped) expected.push_back(index);
    }
  }
  expected.resize(used_indices.size());
  EXPECT_EQ(used_indices, expected);
}

/// A real look-ahead had the next two steps when a sample was replaced: its predictions are for
/// other samples. Then both sides start with an empty cache, and its predictions count again.
TEST_F(StepPrefetcherTest, IgnoresForecastsForReplacedSamples) {
  constexpr int64_t kReplacedStep = 3;
  const planner::PresetFolder model("smolvlm-tiny");
  LookAheadClient look_ahead({.job = model.job(),
                              .step_config = step_config_,
                              .target = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                              .limit_bytes = planner::kUnlimited,
                              .waits_for_answers = true},
                             at::kCPU, [](report::EventKind, const std::string&) {});
  StepPrefetcher prefetcher = make_prefetcher(&look_ahead);
  for (int64_t number = 1; number <= 8; ++number) {
    PlannedStep step = prefetcher.next(0);
    const bool is_outdated = number > kReplacedStep && number <= kReplacedStep + 2;
    EXPECT_EQ(step.plan.peaks.has_value(), !is_outdated) << number;
    EXPECT_EQ(step.plan.empty_cache_at_start, number == kReplacedStep + 3) << number;
    if (number == kReplacedStep) {
      replace(prefetcher, step, 1);
      EXPECT_FALSE(step.plan.peaks) << "it is another step now";
    }
    EXPECT_EQ(step.batch.samples.size(), 4U) << number;
    EXPECT_EQ(step.plan.layout, step.layout) << number;
  }
  EXPECT_EQ(look_ahead.summary().num_predicted_steps, 8) << "it answered each time";
}

/// Steps are submitted ahead, so that a bad sample is known before its step. If a sample of the
/// previous step is replaced, samples that were drawn ahead would be drawn again.
TEST(StepPrefetcherBadSampleTest, KeepsTheErrorWhenReplacingASample) {
  constexpr int64_t kSamples = 12;
  constexpr uint64_t kSeed = 2;
  const int64_t bad_index = data::shuffle_epoch(kSamples, kSeed, 0)[9];  // in the third step
  const data::FakeProcessor processor([bad_index](int64_t index) {
    if (index == bad_index) data::throw_too_long(index);
  });
  const auto records = data::make_records(kSamples);
  const TaskBalancer tasks({}, data::TaskTable(records));
  data::Ledger ledger("train.json", kSamples);
  data::SingleSourceLoader loader(
      records, processor, {.global_batch_size = 4, .on_bad_sample = data::BadSamplePolicy::kFail}, kSeed, {}, ledger);
  const planner::PresetFolder model("smolvlm-tiny");
  const planner::StepConfig step_config = planner::make_step_config(2);
  LookAheadClient look_ahead({.job = model.job(),
                              .step_config = step_config,
                              .target = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                              .limit_bytes = planner::kUnlimited,
                              .waits_for_answers = true},
                             at::kCPU, [](report::EventKind, const std::string&) {});
  StepPrefetcher prefetcher(loader, step_config, tasks, &look_ahead, 1, 8);
  PlannedStep first = prefetcher.next(0);
  EXPECT_THROW(prefetcher.replace_samples(first, {first.batch.samples.front().index}), UserError);
}

}  // namespace

}  // namespace vlmtrain::train

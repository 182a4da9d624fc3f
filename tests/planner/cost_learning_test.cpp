#include "planner/cost_learning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "planner/nonnegative_fit.h"
#include "vlmtrain/planner/step_cut.h"

namespace vlmtrain::planner {
namespace {

constexpr int64_t kMB = 1'000'000;
constexpr int64_t kStanding = 4'000 * kMB;
constexpr int64_t kLimit = 10'000 * kMB;

/// A card whose memory follows from a formula.
class Formula final : public SetRehearsal {
 public:
  explicit Formula(std::function<int64_t(const SetSizes&)> bytes, int64_t fragmentation = 0)
      : bytes_(std::move(bytes)), fragmentation_(fragmentation) {}

  std::vector<int64_t> bytes_of(const std::vector<SampleSet>& sets) override {
    std::vector<int64_t> all;
    for (const auto& set : sets) all.push_back(bytes_(sizes_of(set)));
    return all;
  }

  Steps run(const std::vector<SampleSet>& steps, const std::vector<engine::Cut>& cuts) override {
    Steps found;
    for (size_t i = 0; i < steps.size(); ++i) {
      for (int64_t k = 0; k < cuts[i].micro_batches(); ++k) {
        const int64_t bytes = bytes_of_micro_batch(steps[i], cuts[i].micro_batch(k)) + fragmentation_;
        found.peaks.reserved_bytes = std::max(found.peaks.reserved_bytes, bytes);
      }
      found.seconds.push_back(static_cast<double>(cuts[i].micro_batches()));
    }
    return found;
  }

  int64_t bytes_of_micro_batch(const SampleSet& step, std::span<const int64_t> places) const {
    SetSizes sizes;
    for (const int64_t place : places) sizes = sizes.with(sizes_of(step[static_cast<size_t>(place)]));
    return bytes_(sizes);
  }

 private:
  std::function<int64_t(const SetSizes&)> bytes_;
  int64_t fragmentation_;
};

/// One in ten samples is large.
SampleSet draw(std::mt19937& random) {
  SampleSet step;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t images = random() % 10 == 0 ? 30 : 1;
    const auto text = 50 + static_cast<int64_t>(random() % 500);
    step.push_back({.tokens = 64 * images + text,
                    .label_tokens = 1 + text / 2,
                    .image_tokens = 64 * images,
                    .images = images,
                    .pixel_rows = images});
  }
  return step;
}

CutQuestion question() {
  std::mt19937 random(1);
  CutQuestion question;
  question.like.limit_bytes = kLimit;
  for (int64_t i = 0; i < 48; ++i) question.drawn.push_back(draw(random));
  question.largest = {SampleSet(16, question.drawn.front().front())};
  return question;
}

int64_t linear(const SetSizes& sizes) {
  return kStanding + sizes.tokens * kMB + sizes.pixel_rows * 20 * kMB +
         std::min<int64_t>(sizes.label_tokens, 1024) * kMB / 2;
}

/// Of two phases of a step one takes more.
int64_t of_two_phases(const SetSizes& sizes) {
  return kStanding + std::max(sizes.tokens * kMB, sizes.pixel_rows * 110 * kMB + sizes.tokens * kMB / 4);
}

struct Misses {
  int64_t above = 0;  // micro-batches that take more than the limit
  double fullest = 0;
};

/// Over steps that were not learnt from.
Misses misses_of(const CostTable& table, const Formula& truth) {
  std::mt19937 random(99);
  Misses misses;
  for (int64_t i = 0; i < 200; ++i) {
    const SampleSet step = draw(random);
    const auto cut = cut_by_memory(step, table);
    for (int64_t k = 0; k < cut.micro_batches(); ++k) {
      const int64_t bytes = truth.bytes_of_micro_batch(step, cut.micro_batch(k));
      misses.above += bytes > kLimit && cut.micro_batch(k).size() > 1;
      misses.fullest = std::max(misses.fullest, static_cast<double>(bytes) / kLimit);
    }
  }
  return misses;
}

TEST(CostLearningTest, WhatIsASumOfItsSizesIsFoundExactly) {
  Formula truth(linear);
  const CutPlan plan = learn_cut(truth, question());
  const Misses misses = misses_of(plan.table, truth);
  EXPECT_EQ(misses.above, 0);
  EXPECT_GT(misses.fullest, 0.98);
  EXPECT_EQ(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.rehearsed_sets, 20);
  EXPECT_LE(plan.fewest_passes, plan.most_passes);
  EXPECT_EQ(plan.drawn_steps, 48);
  EXPECT_NEAR(plan.step_seconds, plan.passes_per_step, 0.1) << "as the formula's seconds are, over fewer steps";
  EXPECT_DOUBLE_EQ(plan.samples_per_second * plan.step_seconds, 16);
}

TEST(CostLearningTest, OfStepsOfManyMicroBatchesSomeAreRun) {
  Formula truth(linear);
  CutQuestion asked = question();
  SampleSet all;
  for (const SampleSet& step : asked.drawn) all.insert(all.end(), step.begin(), step.end());
  asked.drawn = {all, all, all, all};
  const CutPlan plan = learn_cut(truth, asked);
  EXPECT_GT(plan.passes_per_step, 80);
  EXPECT_NEAR(plan.step_seconds / plan.passes_per_step, 1, 0.1) << "for whole steps";
  EXPECT_NEAR(plan.samples_per_second * plan.step_seconds, static_cast<double>(all.size()), 1e-6);
}

TEST(CostLearningTest, PhasesThatChangeAreBounded) {
  Formula truth(of_two_phases);
  const Misses misses = misses_of(learn_cut(truth, question()).table, truth);
  EXPECT_LE(misses.above, 2) << "of some 700 micro-batches";
  EXPECT_GT(misses.fullest, 0.9);
}

TEST(CostLearningTest, TheSameQuestionHasTheSameAnswer) {
  Formula truth(of_two_phases);
  EXPECT_EQ(learn_cut(truth, question()).table, learn_cut(truth, question()).table);
}

TEST(CostLearningTest, WhatStepsInARowTakeMoreLowersTheLimit) {
  Formula truth(linear, /*fragmentation=*/500 * kMB);
  const CutPlan plan = learn_cut(truth, question());
  EXPECT_LE(plan.peaks.reserved_bytes, kLimit);
  EXPECT_LT(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.table.limit_bytes, kLimit - 800 * kMB);
}

/// One that does not fit alone is no reason to make the others' micro-batches smaller.
TEST(CostLearningTest, ASampleThatTakesTooMuchLowersNoLimit) {
  Formula truth(linear);
  CutQuestion with_large = question();
  with_large.largest.front().front().tokens = 20'000;
  const CutPlan plan = learn_cut(truth, with_large);
  EXPECT_EQ(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.peaks.reserved_bytes, kLimit);
}

TEST(CostLearningTest, RehearsedSetsNearTheLimitNeverTakeMoreThanTheTableSays) {
  std::mt19937 random(4);
  std::vector<RehearsedSet> sets;
  for (int64_t i = 0; i < 40; ++i) {
    SampleSet step = draw(random);
    step.resize(1 + static_cast<size_t>(i % 8));
    sets.push_back({sizes_of(step), of_two_phases(sizes_of(step))});
  }
  const CostTable table = fitted({.limit_bytes = kLimit}, sets);
  for (const auto& set : sets) {
    const int64_t more = set.bytes - kStanding;
    const bool is_near = more > (kLimit - kStanding) / 2 && set.bytes < kLimit;
    EXPECT_TRUE(!is_near || set.bytes <= table.bytes(set.sizes)) << set.bytes;
  }
}

TEST(NonnegativeFitTest, CoefficientsThatMadeTheValuesAreFound) {
  const std::vector<std::vector<double>> rows{{1, 2, 1e6}, {1, 5, 2e6}, {1, 1, 7e6}, {1, 9, 1e6}, {1, 4, 0}};
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(3 * row[0] + 0.5 * row[1] + 2e-6 * row[2]);
  const auto found = nonnegative_fit(rows, values, std::vector<double>(rows.size(), 1));
  EXPECT_NEAR(found[0], 3, 1e-4);
  EXPECT_NEAR(found[1], 0.5, 1e-4);
  EXPECT_NEAR(found[2], 2e-6, 1e-10);
}

TEST(NonnegativeFitTest, NoneIsBelowZero) {
  const auto found = nonnegative_fit({{1, 0, 0}, {1, 1, 0}, {1, 2, 0}}, {4, 3, 2}, {1, 1, 1});
  EXPECT_DOUBLE_EQ(found[1], 0);
  EXPECT_DOUBLE_EQ(found[2], 0) << "a column of zeros";
  EXPECT_NEAR(found[0], 3, 1e-9);
}

}  // namespace
}  // namespace vlmtrain::planner

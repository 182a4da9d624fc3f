#include "planner/search/split_plan_learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "planner/search/nonnegative_least_squares.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {
namespace {

constexpr int64_t kMB = 1'000'000;
constexpr int64_t kBaseBytes = 4'000 * kMB;
constexpr int64_t kLimit = 10'000 * kMB;

/// A dry run whose memory is a formula.
class FakeDryRun final : public MicroBatchDryRun {
 public:
  explicit FakeDryRun(std::function<int64_t(const MicroBatchSizes&)> bytes, int64_t fragmentation = 0)
      : bytes_(std::move(bytes)), fragmentation_(fragmentation) {}

  std::vector<int64_t> measure_reserved_peak_bytes(const std::vector<SampleShapeList>& micro_batches) override {
    std::vector<int64_t> bytes;
    for (const auto& micro_batch : micro_batches) bytes.push_back(bytes_(compute_micro_batch_sizes(micro_batch)));
    return bytes;
  }

  StepResults run_steps(const std::vector<SampleShapeList>& steps,
                        const std::vector<engine::MicroBatchSplit>& splits) override {
    StepResults results;
    for (size_t i = 0; i < steps.size(); ++i) {
      for (int64_t k = 0; k < splits[i].num_micro_batches(); ++k) {
        const int64_t bytes = compute_bytes(steps[i], splits[i].get_sample_indices(k)) + fragmentation_;
        results.peaks.reserved_bytes = std::max(results.peaks.reserved_bytes, bytes);
      }
      results.seconds.push_back(static_cast<double>(splits[i].num_micro_batches()));
    }
    return results;
  }

  int64_t compute_bytes(const SampleShapeList& step, std::span<const int64_t> indices) const {
    MicroBatchSizes sizes;
    for (const int64_t index : indices)
      sizes = sizes.merge(compute_micro_batch_sizes(step[static_cast<size_t>(index)]));
    return bytes_(sizes);
  }

 private:
  std::function<int64_t(const MicroBatchSizes&)> bytes_;
  int64_t fragmentation_;
};

/// One in ten samples is large.
SampleShapeList sample_step(std::mt19937& random) {
  SampleShapeList step;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t images = random() % 10 == 0 ? 30 : 1;
    const auto text = 50 + static_cast<int64_t>(random() % 500);
    step.push_back({.tokens = 64 * images + text,
                    .label_tokens = 1 + text / 2,
                    .image_tokens = 64 * images,
                    .num_images = images,
                    .pixel_rows = images});
  }
  return step;
}

SplitPlanRequest make_split_request() {
  std::mt19937 random(1);
  SplitPlanRequest split_request;
  split_request.initial_table.limit_bytes = kLimit;
  for (int64_t i = 0; i < 48; ++i) split_request.sampled_steps.push_back(sample_step(random));
  split_request.worst_steps = {SampleShapeList(16, split_request.sampled_steps.front().front())};
  return split_request;
}

int64_t linear_bytes(const MicroBatchSizes& sizes) {
  return kBaseBytes + sizes.tokens * kMB + sizes.pixel_rows * 20 * kMB +
         std::min<int64_t>(sizes.label_tokens, 1024) * kMB / 2;
}

/// The larger of two phases of a step.
int64_t max_of_two_phases(const MicroBatchSizes& sizes) {
  return kBaseBytes + std::max(sizes.tokens * kMB, sizes.pixel_rows * 110 * kMB + sizes.tokens * kMB / 4);
}

struct LimitViolations {
  int64_t above_limit = 0;  // micro-batches above the limit
  double fullest = 0;
};

/// Over steps that the table was not fitted to.
LimitViolations count_violations(const MemoryCostTable& table, const FakeDryRun& dry_run) {
  std::mt19937 random(99);
  LimitViolations violations;
  for (int64_t i = 0; i < 200; ++i) {
    const SampleShapeList step = sample_step(random);
    const auto split = split_by_memory(step, table);
    for (int64_t k = 0; k < split.num_micro_batches(); ++k) {
      const int64_t bytes = dry_run.compute_bytes(step, split.get_sample_indices(k));
      violations.above_limit += bytes > kLimit && split.get_sample_indices(k).size() > 1;
      violations.fullest = std::max(violations.fullest, static_cast<double>(bytes) / kLimit);
    }
  }
  return violations;
}

TEST(SplitPlanLearnerTest, LinearCostsAreLearnedExactly) {
  FakeDryRun dry_run(linear_bytes);
  const SplitPlan plan = learn_split_plan(dry_run, make_split_request());
  const LimitViolations violations = count_violations(plan.table, dry_run);
  EXPECT_EQ(violations.above_limit, 0);
  EXPECT_GT(violations.fullest, 0.98);
  EXPECT_EQ(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.num_measured_micro_batches, 20);
  EXPECT_LE(plan.min_micro_batches_per_step, plan.max_micro_batches_per_step);
  EXPECT_EQ(plan.num_sampled_steps, 48);
  EXPECT_NEAR(plan.step_seconds, plan.mean_micro_batches_per_step, 0.1)
      << "as the formula's seconds are, over fewer steps";
  EXPECT_DOUBLE_EQ(plan.samples_per_second * plan.step_seconds, 16);
}

TEST(SplitPlanLearnerTest, LargeStepsAreExtrapolatedFromSomeMicroBatches) {
  FakeDryRun dry_run(linear_bytes);
  SplitPlanRequest split_request = make_split_request();
  SampleShapeList samples;
  for (const SampleShapeList& step : split_request.sampled_steps)
    samples.insert(samples.end(), step.begin(), step.end());
  split_request.sampled_steps = {samples, samples, samples, samples};
  const SplitPlan plan = learn_split_plan(dry_run, split_request);
  EXPECT_GT(plan.mean_micro_batches_per_step, 80);
  EXPECT_NEAR(plan.step_seconds / plan.mean_micro_batches_per_step, 1, 0.1) << "for whole steps";
  EXPECT_NEAR(plan.samples_per_second * plan.step_seconds, static_cast<double>(samples.size()), 1e-6);
}

TEST(SplitPlanLearnerTest, CostsOfAlternatingPhasesAreBounded) {
  FakeDryRun dry_run(max_of_two_phases);
  const LimitViolations violations = count_violations(learn_split_plan(dry_run, make_split_request()).table, dry_run);
  EXPECT_LE(violations.above_limit, 2) << "of some 700 micro-batches";
  EXPECT_GT(violations.fullest, 0.9);
}

TEST(SplitPlanLearnerTest, IsDeterministic) {
  FakeDryRun dry_run(max_of_two_phases);
  EXPECT_EQ(learn_split_plan(dry_run, make_split_request()).table,
            learn_split_plan(dry_run, make_split_request()).table);
}

TEST(SplitPlanLearnerTest, FragmentationOfConsecutiveStepsLowersTheLimit) {
  FakeDryRun dry_run(linear_bytes, /*fragmentation=*/500 * kMB);
  const SplitPlan plan = learn_split_plan(dry_run, make_split_request());
  EXPECT_LE(plan.peaks.reserved_bytes, kLimit);
  EXPECT_LT(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.table.limit_bytes, kLimit - 800 * kMB);
}

/// A sample that does not fit alone does not make the other micro-batches smaller.
TEST(SplitPlanLearnerTest, ASampleThatDoesNotFitAloneKeepsTheLimit) {
  FakeDryRun dry_run(linear_bytes);
  SplitPlanRequest split_request = make_split_request();
  split_request.worst_steps.front().front().tokens = 20'000;
  const SplitPlan plan = learn_split_plan(dry_run, split_request);
  EXPECT_EQ(plan.table.limit_bytes, kLimit);
  EXPECT_GT(plan.peaks.reserved_bytes, kLimit);
}

TEST(SplitPlanLearnerTest, TheTableBoundsMeasurementsNearTheLimit) {
  std::mt19937 random(4);
  std::vector<MeasuredMicroBatch> micro_batches;
  for (int64_t i = 0; i < 40; ++i) {
    SampleShapeList step = sample_step(random);
    step.resize(1 + static_cast<size_t>(i % 8));
    micro_batches.push_back({compute_micro_batch_sizes(step), max_of_two_phases(compute_micro_batch_sizes(step))});
  }
  const MemoryCostTable table = fit_cost_table({.limit_bytes = kLimit}, micro_batches);
  for (const auto& micro_batch : micro_batches) {
    const int64_t activation_bytes = micro_batch.bytes - kBaseBytes;
    const bool is_near = activation_bytes > (kLimit - kBaseBytes) / 2 && micro_batch.bytes < kLimit;
    EXPECT_TRUE(!is_near || micro_batch.bytes <= table.bytes(micro_batch.sizes)) << micro_batch.bytes;
  }
}

TEST(NonnegativeLeastSquaresTest, RecoversTheCoefficients) {
  const std::vector<std::vector<double>> rows{{1, 2, 1e6}, {1, 5, 2e6}, {1, 1, 7e6}, {1, 9, 1e6}, {1, 4, 0}};
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(3 * row[0] + 0.5 * row[1] + 2e-6 * row[2]);
  const auto coefficients = solve_nonnegative_least_squares(rows, values, std::vector<double>(rows.size(), 1));
  EXPECT_NEAR(coefficients[0], 3, 1e-4);
  EXPECT_NEAR(coefficients[1], 0.5, 1e-4);
  EXPECT_NEAR(coefficients[2], 2e-6, 1e-10);
}

TEST(NonnegativeLeastSquaresTest, CoefficientsAreNotNegative) {
  const auto coefficients = solve_nonnegative_least_squares({{1, 0, 0}, {1, 1, 0}, {1, 2, 0}}, {4, 3, 2}, {1, 1, 1});
  EXPECT_DOUBLE_EQ(coefficients[1], 0);
  EXPECT_DOUBLE_EQ(coefficients[2], 0) << "a column of zeros";
  EXPECT_NEAR(coefficients[0], 3, 1e-9);
}

}  // namespace
}  // namespace vlmtrain::planner

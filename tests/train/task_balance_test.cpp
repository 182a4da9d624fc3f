#include "train/task_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/task_weights.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using engine::BalanceOptions;
using engine::TaskResult;
using engine::TaskWeighting;
using testing::AllOf;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

data::Tasks tasks_of(const std::vector<std::string>& names) {
  std::vector<io::Record> records;
  for (const auto& name : names) {
    io::Record record;
    record.task = name;
    records.push_back(std::move(record));
  }
  return data::Tasks(io::RecordList(std::move(records)));
}

const data::Tasks kTasks = tasks_of({"vqa", "vqa", "vqa", "caption"});

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "it was taken";
  return {};
}

/// Ratio 3 : 1 of caption : vqa with 1 and 3 samples: (3·1 + 1·3) / 4 = 1.5 is the mean, so 2 and ⅔.
TEST(TaskWeights, FixedOnesAreScaledToMeanOne) {
  EXPECT_THAT(fixed_weights({"vqa=1", "caption=3"}, kTasks), ElementsAre(DoubleEq(2), DoubleEq(2.0 / 3)));
}

TEST(TaskWeights, InverseSizeGivesEachTaskTheSameShare) {
  EXPECT_THAT(inverse_size_weights(kTasks), ElementsAre(DoubleEq(2), DoubleEq(2.0 / 3)));
}

TEST(TaskWeights, ANameMayHoldAnEqualsSign) {
  EXPECT_THAT(fixed_weights({"a=b=1", "c=1"}, tasks_of({"a=b", "c"})), ElementsAre(DoubleEq(1), DoubleEq(1)));
}

TEST(TaskWeights, AllErrorsComeTogetherWithTheirRemedy) {
  const auto message = refusal([] { fixed_weights({"vqaa=1", "caption", "vqa=0", "vqa=-1", "vqa=1x"}, kTasks); });
  EXPECT_THAT(message, AllOf(HasSubstr("training.task_weights"),
                             HasSubstr("vqaa: is not a task of data.train; did you mean vqa?"),
                             HasSubstr("caption: an entry is written name=weight"), HasSubstr("vqa=0:"),
                             HasSubstr("vqa=-1:"), HasSubstr("vqa=1x:"), HasSubstr("vqa: has no weight; add vqa=1")));
  EXPECT_THAT(refusal([] { fixed_weights({"vqa=1", "caption=1", "vqa=2"}, kTasks); }), HasSubstr("vqa: stands twice"));
}

BalanceOptions weighted(TaskWeighting weighting, std::vector<std::string> weights = {}) {
  BalanceOptions options;
  options.task_weighting = weighting;
  options.task_weights = std::move(weights);
  return options;
}

BalanceOptions resolving_conflicts() {
  BalanceOptions options;
  options.gradient_conflicts = engine::GradientConflicts::kPcGrad;
  return options;
}

TEST(TaskSettings, SayWhatTheConfigurationAsksFor) {
  EXPECT_EQ(task_settings({}, kTasks).count, 2);
  EXPECT_THAT(task_settings({}, kTasks).weights, IsEmpty());
  EXPECT_FALSE(task_settings({}, kTasks).resolve_conflicts);
  const auto gradnorm = task_settings(weighted(TaskWeighting::kGradNorm), kTasks);
  EXPECT_THAT(gradnorm.weights, ElementsAre(1, 1));
  EXPECT_TRUE(gradnorm.gradient_norms);
  EXPECT_TRUE(task_settings(resolving_conflicts(), kTasks).resolve_conflicts);
  EXPECT_FALSE(task_settings({}, tasks_of({"", ""})).apart());
}

TEST(TaskSettings, OneTaskHasNothingToBalance) {
  const auto one = tasks_of({"vqa", "vqa"});
  EXPECT_THAT(refusal([&] { task_settings(weighted(TaskWeighting::kInverseSize), one); }),
              AllOf(HasSubstr("training.task_weighting"), HasSubstr("only one task, vqa"), HasSubstr("none")));
  EXPECT_THAT(refusal([&] { task_settings(resolving_conflicts(), one); }), HasSubstr("training.gradient_conflicts"));
  EXPECT_THAT(refusal([] { task_settings(weighted(TaskWeighting::kNone, {"vqa=1"}), kTasks); }),
              HasSubstr("is not fixed"));
}

std::vector<TaskResult> results(double loss, double norm) {
  return {{.counts = {1, 2}, .loss = loss, .accuracy = 0.5, .gradient_norm = norm},
          {.counts = {3, 9}, .loss = 2, .accuracy = 1, .gradient_norm = 1}};
}

void learn(TaskBalance& balance, int64_t step, const std::vector<double>& weights, double norm, bool skipped = false) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.skipped = skipped;
  balance.learn(results(3, norm), weights, metrics);
}

BalanceOptions fast_gradnorm() {
  BalanceOptions options = weighted(TaskWeighting::kGradNorm);
  options.gradnorm_learning_rate = 0.1;
  return options;
}

const BalanceOptions kGradNorm = fast_gradnorm();

TEST(TaskBalance, EntersTheTasksIntoTheMetrics) {
  TaskBalance balance(weighted(TaskWeighting::kInverseSize), kTasks);
  report::StepMetrics metrics;
  auto of_step = results(3, 0);
  of_step[1].counts = {0, 0};
  balance.learn(of_step, balance.objective(1, 0)->task_weights(), metrics);
  ASSERT_EQ(metrics.tasks.size(), 1U) << "a task that is not in the step is not in its line";
  const auto& task = metrics.tasks.at("caption");
  EXPECT_EQ(task.loss, 3);
  EXPECT_EQ(task.accuracy, 0.5);
  EXPECT_EQ(task.label_tokens, 2);
  EXPECT_EQ(task.samples, 1);
  EXPECT_DOUBLE_EQ(task.weight, 2);
}

/// Whether the step before has been learnt from already, as on the CPU, or not, as on a GPU.
TEST(TaskBalance, WeightsFollowFromAllStepsButTheLast) {
  TaskBalance early(kGradNorm, kTasks), late(kGradNorm, kTasks);
  std::optional<std::pair<int64_t, std::vector<double>>> pending;
  for (int64_t step = 1; step <= 6; ++step) {
    const std::vector<double> weights = early.objective(step, 0)->task_weights();
    EXPECT_EQ(late.objective(step, 0)->task_weights(), weights) << "step " << step;
    const bool is_first = weights == std::vector<double>{1, 1};
    EXPECT_EQ(is_first, step <= 2);
    learn(early, step, weights, 2.0 + static_cast<double>(step));
    if (pending) learn(late, pending->first, pending->second, 2.0 + static_cast<double>(pending->first));
    pending = {step, weights};
  }
}

TEST(TaskBalance, ASkippedStepTeachesNothing) {
  TaskBalance balance(kGradNorm, kTasks);
  learn(balance, 1, balance.objective(1, 0)->task_weights(), 5, /*skipped=*/true);
  EXPECT_THAT(balance.objective(3, 0)->task_weights(), ElementsAre(1, 1));
}

TEST(TaskBalance, GoesOnFromItsStateBitForBit) {
  TaskBalance whole(kGradNorm, kTasks);
  nlohmann::ordered_json state;
  std::vector<std::vector<double>> wanted;
  for (int64_t step = 1; step <= 8; ++step) {
    const std::vector<double> weights = whole.objective(step, 0)->task_weights();
    wanted.push_back(weights);
    learn(whole, step, weights, 1.0 + 1.0 / static_cast<double>(step));
    if (step == 4) state = nlohmann::ordered_json::parse(whole.state().dump());
  }
  TaskBalance resumed(kGradNorm, kTasks);
  resumed.restore(state, "step-4");
  for (int64_t step = 5; step <= 8; ++step) {
    const std::vector<double> weights = resumed.objective(step, 0)->task_weights();
    EXPECT_EQ(weights, wanted[static_cast<size_t>(step - 1)]) << "step " << step;
    learn(resumed, step, weights, 1.0 + 1.0 / static_cast<double>(step));
  }
  EXPECT_EQ(resumed.state(), whole.state());
}

TEST(TaskBalance, AStateOfOtherTasksOrADamagedOneIsRefused) {
  TaskBalance balance(kGradNorm, kTasks);
  const auto good = balance.state();
  TaskBalance other(kGradNorm, tasks_of({"a", "b"}));
  EXPECT_THROW(other.restore(good, "step-4"), UserError);
  EXPECT_THROW(balance.restore(nullptr, "step-4"), UserError);
  auto damaged = good;
  damaged.erase("weights");
  EXPECT_THROW(balance.restore(damaged, "step-4"), UserError);
  EXPECT_TRUE(TaskBalance({}, kTasks).state().is_null());
}

TEST(TaskBalance, SaysWhatItDoes) {
  EXPECT_EQ(TaskBalance(weighted(TaskWeighting::kInverseSize), kTasks).description(),
            "tasks: caption (1 samples, weight 2), vqa (3 samples, weight 0.6667)");
  EXPECT_THAT(TaskBalance(kGradNorm, kTasks).description(), HasSubstr("GradNorm"));
  EXPECT_THAT(TaskBalance({}, tasks_of({"vqa"})).description(), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::train

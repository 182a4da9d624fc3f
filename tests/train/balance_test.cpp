#include "train/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

using engine::BatchScaling;
using testing::HasSubstr;
using testing::IsEmpty;

engine::TrainingOptions options(BatchScaling scaling, AutoOr<int64_t> tokens, AutoOr<int64_t> reference) {
  engine::TrainingOptions training;
  training.global_batch_size = 64;
  training.max_steps = 10;
  training.learning_rate = 1e-4;
  training.vision_learning_rate = 2e-5;
  training.batch_and_tasks.batch_scaling = scaling;
  training.batch_and_tasks.global_batch_tokens = tokens;
  training.batch_and_tasks.reference_batch_size = reference;
  return training;
}

TEST(BatchScaling, LearningRatesScaleWithTheReferenceBatch) {
  for (const auto& [scaling, factor] : {std::pair{BatchScaling::kSqrt, 2.0}, {BatchScaling::kLinear, 4.0}}) {
    const auto training = options(scaling, {}, 16);
    check_batch_scaling(training);
    EXPECT_DOUBLE_EQ(compute_reference_lr_factor(training), factor);
    const auto rates = compute_learning_rates(training, 0.5);
    EXPECT_DOUBLE_EQ(rates.language_model, 0.5 * factor * 1e-4);
    EXPECT_DOUBLE_EQ(rates.projector, 0.5 * factor * 1e-4);
    EXPECT_DOUBLE_EQ(rates.vision_tower, 0.5 * factor * 2e-5);
  }
  EXPECT_EQ(compute_reference_lr_factor(options(BatchScaling::kNone, {}, {})), 1.0);
  EXPECT_DOUBLE_EQ(compute_reference_lr_factor(options(BatchScaling::kSqrt, {}, 256)), 0.5);
}

TEST(BatchScaling, StepLearningRatesScaleWithTokens) {
  EXPECT_EQ(compute_step_lr_factor(options(BatchScaling::kNone, 1000, {}), 250), 1.0);
  EXPECT_DOUBLE_EQ(compute_step_lr_factor(options(BatchScaling::kSqrt, 1000, {}), 250), 0.5);
  EXPECT_DOUBLE_EQ(compute_step_lr_factor(options(BatchScaling::kLinear, 1000, {}), 250), 0.25);
  EXPECT_EQ(compute_step_lr_factor(options(BatchScaling::kLinear, {}, 16), 250), 1.0) << "the batch has its size";
}

TEST(BatchScaling, LogDescribesRuleAndLearningRates) {
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kNone, {}, {})), IsEmpty());
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kSqrt, {}, 16)),
              testing::AllOf(HasSubstr("sqrt"), HasSubstr("16"), HasSubstr("0.0002"), HasSubstr("4e-05")));
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kLinear, 4096, {})),
              testing::AllOf(HasSubstr("about 4096 tokens, at most 64 samples"), HasSubstr("linear")));
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kNone, 4096, {})), HasSubstr("are not scaled"));
}

TEST(BatchScaling, RejectsConflictingOptions) {
  const auto get_refusal = [](const engine::TrainingOptions& training) -> std::string {
    try {
      check_batch_scaling(training);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "it was taken";
  };
  auto without_steps = options(BatchScaling::kNone, 4096, {});
  without_steps.max_steps.reset();
  EXPECT_THAT(get_refusal(without_steps), HasSubstr("set training.max_steps"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kSqrt, 4096, 16)), HasSubstr("set one of the two to auto"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kSqrt, {}, {})), HasSubstr("needs a reference"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kNone, {}, 16)),
              HasSubstr("training.batch_scaling=none; set it to sqrt"));
}

using engine::BatchAndTaskOptions;
using engine::TaskResult;
using engine::TaskWeighting;
using testing::AllOf;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

data::TaskTable make_tasks(const std::vector<std::string>& names) {
  std::vector<io::Record> records;
  for (const auto& name : names) {
    io::Record record;
    record.task = name;
    records.push_back(std::move(record));
  }
  return data::TaskTable(io::InMemoryRecords(std::move(records)));
}

const data::TaskTable kTasks = make_tasks({"vqa", "vqa", "vqa", "caption"});

std::string get_refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "it was taken";
  return {};
}

/// Ratio 3 : 1 of caption : vqa with 1 and 3 samples: the mean is (3·1 + 1·3) / 4 = 1.5, so 2 and
/// ⅔.
TEST(TaskWeights, ScalesFixedWeightsToMeanOne) {
  EXPECT_THAT(parse_task_weights({"vqa=1", "caption=3"}, kTasks), ElementsAre(DoubleEq(2), DoubleEq(2.0 / 3)));
}

TEST(TaskWeights, InverseSizeGivesEachTaskTheSameShare) {
  EXPECT_THAT(compute_inverse_size_weights(kTasks), ElementsAre(DoubleEq(2), DoubleEq(2.0 / 3)));
}

TEST(TaskWeights, ANameMayHoldAnEqualsSign) {
  EXPECT_THAT(parse_task_weights({"a=b=1", "c=1"}, make_tasks({"a=b", "c"})), ElementsAre(DoubleEq(1), DoubleEq(1)));
}

TEST(TaskWeights, ReportsAllErrorsTogether) {
  const auto message = get_refusal([] {
    parse_task_weights({"vqaa=1", "caption", "vqa=0", "vqa=-1", "vqa=1x"}, kTasks);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("training.task_weights"),
                             HasSubstr("vqaa: is not a task of data.train; did you mean vqa?"),
                             HasSubstr("caption: is not name=weight"), HasSubstr("vqa=0:"), HasSubstr("vqa=-1:"),
                             HasSubstr("vqa=1x:"), HasSubstr("vqa: has no weight; add vqa=1")));
  EXPECT_THAT(get_refusal([] {
                parse_task_weights({"vqa=1", "caption=1", "vqa=2"}, kTasks);
              }),
              HasSubstr("vqa: is given twice"));
}

BatchAndTaskOptions make_weighted_options(TaskWeighting weighting, std::vector<std::string> weights = {}) {
  BatchAndTaskOptions options;
  options.task_weighting = weighting;
  options.task_weights = std::move(weights);
  return options;
}

BatchAndTaskOptions make_pcgrad_options() {
  BatchAndTaskOptions options;
  options.gradient_conflicts = engine::GradientConflictMethod::kPcGrad;
  return options;
}

TEST(TaskSettings, FollowTheOptions) {
  EXPECT_EQ(make_task_settings({}, kTasks).num_tasks, 2);
  EXPECT_THAT(make_task_settings({}, kTasks).weights, IsEmpty());
  EXPECT_FALSE(make_task_settings({}, kTasks).resolve_gradient_conflicts);
  const auto gradnorm = make_task_settings(make_weighted_options(TaskWeighting::kGradNorm), kTasks);
  EXPECT_THAT(gradnorm.weights, ElementsAre(1, 1));
  EXPECT_TRUE(gradnorm.measure_gradient_norms);
  EXPECT_TRUE(make_task_settings(make_pcgrad_options(), kTasks).resolve_gradient_conflicts);
  EXPECT_FALSE(make_task_settings({}, make_tasks({"", ""})).is_multi_task());
}

TEST(TaskSettings, RejectsBalancingOneTask) {
  const auto one_task = make_tasks({"vqa", "vqa"});
  EXPECT_THAT(get_refusal([&] { make_task_settings(make_weighted_options(TaskWeighting::kInverseSize), one_task); }),
              AllOf(HasSubstr("training.task_weighting"), HasSubstr("only one task, vqa"), HasSubstr("none")));
  EXPECT_THAT(get_refusal([&] { make_task_settings(make_pcgrad_options(), one_task); }),
              HasSubstr("training.gradient_conflicts"));
  EXPECT_THAT(get_refusal([] { make_task_settings(make_weighted_options(TaskWeighting::kNone, {"vqa=1"}), kTasks); }),
              HasSubstr("is not fixed"));
}

std::vector<TaskResult> make_results(double loss, double norm) {
  return {{.counts = {1, 2}, .loss = loss, .accuracy = 0.5, .gradient_norm = norm},
          {.counts = {3, 9}, .loss = 2, .accuracy = 1, .gradient_norm = 1}};
}

void update_balance(TaskBalancer& balance, int64_t step, const std::vector<double>& weights, double norm,
                    bool skipped = false) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.skipped = skipped;
  balance.update(make_results(3, norm), weights, metrics);
}

BatchAndTaskOptions make_fast_gradnorm_options() {
  BatchAndTaskOptions options = make_weighted_options(TaskWeighting::kGradNorm);
  options.gradnorm_learning_rate = 0.1;
  return options;
}

const BatchAndTaskOptions kGradNorm = make_fast_gradnorm_options();

TEST(TaskBalancer, AddsTasksToTheMetrics) {
  TaskBalancer balance(make_weighted_options(TaskWeighting::kInverseSize), kTasks);
  report::StepMetrics metrics;
  auto step_results = make_results(3, 0);
  step_results[1].counts = {0, 0};
  balance.update(step_results, balance.make_objective(1, 0)->task_weights(), metrics);
  ASSERT_EQ(metrics.tasks.size(), 1U) << "a task that is not in the step is not in its line";
  const auto& task = metrics.tasks.at("caption");
  EXPECT_EQ(task.loss, 3);
  EXPECT_EQ(task.accuracy, 0.5);
  EXPECT_EQ(task.label_tokens, 2);
  EXPECT_EQ(task.samples, 1);
  EXPECT_DOUBLE_EQ(task.weight, 2);
}

/// The weights are the same whether the previous step was recorded already, as on the CPU, or not,
/// as on a GPU.
TEST(TaskBalancer, WeightsDependOnAllStepsButTheLast) {
  TaskBalancer early(kGradNorm, kTasks), late(kGradNorm, kTasks);
  std::optional<std::pair<int64_t, std::vector<double>>> pending;
  for (int64_t step = 1; step <= 6; ++step) {
    const std::vector<double> weights = early.make_objective(step, 0)->task_weights();
    EXPECT_EQ(late.make_objective(step, 0)->task_weights(), weights) << "step " << step;
    const bool is_first = weights == std::vector<double>{1, 1};
    EXPECT_EQ(is_first, step <= 2);
    update_balance(early, step, weights, 2.0 + static_cast<double>(step));
    if (pending) update_balance(late, pending->first, pending->second, 2.0 + static_cast<double>(pending->first));
    pending = {step, weights};
  }
}

TEST(TaskBalancer, IgnoresSkippedSteps) {
  TaskBalancer balance(kGradNorm, kTasks);
  update_balance(balance, 1, balance.make_objective(1, 0)->task_weights(), 5, /*skipped=*/true);
  EXPECT_THAT(balance.make_objective(3, 0)->task_weights(), ElementsAre(1, 1));
}

TEST(TaskBalancer, RestoresItsStateExactly) {
  TaskBalancer uninterrupted(kGradNorm, kTasks);
  nlohmann::ordered_json state;
  std::vector<std::vector<double>> expected;
  for (int64_t step = 1; step <= 8; ++step) {
    const std::vector<double> weights = uninterrupted.make_objective(step, 0)->task_weights();
    expected.push_back(weights);
    update_balance(uninterrupted, step, weights, 1.0 + 1.0 / static_cast<double>(step));
    if (step == 4) state = nlohmann::ordered_json::parse(uninterrupted.state().dump());
  }
  TaskBalancer resumed(kGradNorm, kTasks);
  resumed.restore(state, "step-4");
  for (int64_t step = 5; step <= 8; ++step) {
    const std::vector<double> weights = resumed.make_objective(step, 0)->task_weights();
    EXPECT_EQ(weights, expected[static_cast<size_t>(step - 1)]) << "step " << step;
    update_balance(resumed, step, weights, 1.0 + 1.0 / static_cast<double>(step));
  }
  EXPECT_EQ(resumed.state(), uninterrupted.state());
}

TEST(TaskBalancer, RejectsForeignAndDamagedStates) {
  TaskBalancer balance(kGradNorm, kTasks);
  const auto valid_state = balance.state();
  TaskBalancer other_tasks(kGradNorm, make_tasks({"a", "b"}));
  EXPECT_THROW(other_tasks.restore(valid_state, "step-4"), UserError);
  EXPECT_THROW(balance.restore(nullptr, "step-4"), UserError);
  auto damaged = valid_state;
  damaged.erase("weights");
  EXPECT_THROW(balance.restore(damaged, "step-4"), UserError);
  EXPECT_TRUE(TaskBalancer({}, kTasks).state().is_null());
}

TEST(TaskBalancer, DescribesItself) {
  EXPECT_EQ(TaskBalancer(make_weighted_options(TaskWeighting::kInverseSize), kTasks).describe(),
            "tasks: caption (1 samples, weight 2), vqa (3 samples, weight 0.6667)");
  EXPECT_THAT(TaskBalancer(kGradNorm, kTasks).describe(), HasSubstr("GradNorm"));
  EXPECT_THAT(TaskBalancer({}, make_tasks({"vqa"})).describe(), IsEmpty());
}

}  // namespace

}  // namespace vlmtrain::train

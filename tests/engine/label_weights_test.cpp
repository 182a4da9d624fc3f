#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::engine {
namespace {

using parity::Deviations;
using parity::has_zero_true_gradient;
using parity::relative_difference;

/// As kGradientBound of accumulation_test.cpp: orders of fp32 sums.
constexpr double kRoundingBound = 5e-6;

class LabelWeights : public testing::Test {
 protected:
  static Gradients compute_gradients(const std::vector<data::Sample>& samples, const SmallStep& step) {
    const auto model = parity::Case("mixed_batch").load_model();
    Gradients actual{accumulate_gradients(*model, samples, step).loss.item<double>(), {}};
    for (const auto& parameter : model->parameters().all()) actual.by_name[parameter.name] = parameter.tensor.grad();
    return actual;
  }

  static void expect_same(const Gradients& actual, const Gradients& expected, const std::string& label,
                          Deviations& deviations) {
    deviations.expect_at_most(5e-7, std::abs(actual.loss / expected.loss - 1), "loss", label);
    for (const auto& [name, gradient] : expected.by_name) {
      if (has_zero_true_gradient(name)) continue;
      deviations.expect_at_most(kRoundingBound, relative_difference(actual.by_name.at(name), gradient), "gradient",
                                fmt::format("{}, {}", label, name));
    }
  }

  const std::vector<data::Sample> samples_ = make_weighted_samples();
};

/// Each answer has one weight, so that the step is a weighted sum of steps of single samples.
TEST_F(LabelWeights, LossIsTheWeightedMean) {
  constexpr std::array kSampleWeights{0.5F, 1.0F, 0.25F, 1.0F, 0.125F, 0.75F, 1.0F, 0.0625F};
  std::vector<data::Sample> samples = batch_of_eight();
  Gradients expected;
  double weight_sum = 0;
  const auto model = parity::Case("mixed_batch").load_model();
  const CrossEntropyObjective objective;
  for (size_t i = 0; i < samples.size(); ++i) {
    data::Sample& sample = samples[i];
    const StepInput input{.objective = objective, .samples = {&sample, 1}, .normalizers = {1.0}};
    const double loss =
        accumulate(*model, input, {.split = split_evenly(1, 1), .recompute = {}}).result.loss.item<double>();
    expected.loss += kSampleWeights[i] * loss;
    weight_sum += kSampleWeights[i] * static_cast<double>(sample.label_tokens());
    for (const auto& parameter : model->parameters().all()) {
      at::Tensor& sum = expected.by_name[parameter.name];
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (!gradient.defined()) continue;
      const at::Tensor weighted = gradient.to(at::kDouble) * kSampleWeights[i];
      sum = sum.defined() ? sum + weighted : weighted;
      gradient.reset();
    }
    if (kSampleWeights[i] != 1) set_label_weights(sample, [&](int64_t /*position*/) { return kSampleWeights[i]; });
  }
  expected.loss /= weight_sum;
  for (auto& [name, gradient] : expected.by_name) gradient = gradient / weight_sum;
  EXPECT_EQ(objective.compute_normalizers(samples), (LossNormalizers{weight_sum}));
  Deviations deviations;
  for (const int64_t size : {1, 3, 8})
    expect_same(compute_gradients(samples, {.micro_batch_size = size}), expected, fmt::format("{}", size), deviations);
  deviations.report();
}

TEST_F(LabelWeights, GradientDoesNotDependOnSplitAndChunks) {
  const auto expected = compute_gradients(samples_, {.micro_batch_size = 8});
  Deviations deviations;
  for (const int64_t size : {1, 2, 4}) {
    expect_same(compute_gradients(samples_, {.micro_batch_size = size}), expected,
                fmt::format("micro-batches of {}", size), deviations);
  }
  for (const int64_t rows : {1, 5}) {
    expect_same(compute_gradients(samples_, {.micro_batch_size = 8, .loss_chunk_rows = rows}), expected,
                fmt::format("chunks of {}", rows), deviations);
  }
  deviations.report();
}

TEST_F(LabelWeights, ChangeTheGradient) {
  const auto weighted = compute_gradients(samples_, {.micro_batch_size = 8});
  const auto plain = compute_gradients(batch_of_eight(), {.micro_batch_size = 8});
  EXPECT_GT(std::abs(weighted.loss / plain.loss - 1), 1e-3);
}

TEST_F(LabelWeights, MicroBatchesHaveWeightsOnlyIfASampleHas) {
  const CrossEntropyObjective objective;
  const std::vector<int64_t> plain{0}, mixed{0, 1};
  EXPECT_FALSE(objective.collate(samples_, plain).label_weights.defined());
  EXPECT_EQ(objective.collate(samples_, plain).label_weight_sum, samples_[0].label_tokens());
  const data::MicroBatch batch = objective.collate(samples_, mixed);
  ASSERT_TRUE(batch.label_weights.defined());
  EXPECT_EQ(batch.label_weights.numel(), batch.label_tokens());
  EXPECT_EQ(batch.label_weights.scalar_type(), at::kFloat);
  EXPECT_DOUBLE_EQ(batch.label_weight_sum, batch.label_weights.to(at::kDouble).sum().item<double>());
  EXPECT_LT(batch.label_weight_sum, batch.label_tokens());
}

TEST_F(LabelWeights, CountsRemainNumbersOfTokens) {
  const auto model = parity::Case("mixed_batch").load_model();
  const auto result = accumulate_gradients(*model, samples_, {.micro_batch_size = 3});
  int64_t label_tokens = 0;
  double label_weight = 0;
  for (const data::Sample& sample : samples_) {
    label_tokens += sample.label_tokens();
    label_weight += sample.label_weight();
  }
  EXPECT_EQ(result.label_tokens, label_tokens);
  EXPECT_DOUBLE_EQ(result.label_weight, label_weight);
  EXPECT_LT(label_weight, label_tokens);
}

TEST_F(LabelWeights, LossesOfTasksAreWeightedMeans) {
  std::vector<data::Sample> samples = samples_;
  for (size_t i = 0; i < samples.size(); ++i) samples[i].task_index = static_cast<int64_t>(i) / 4;
  const auto model = parity::Case("mixed_batch").load_model();
  const auto step = accumulate_gradients(*model, samples, {.micro_batch_size = 3, .tasks = {.num_tasks = 2}});
  const std::vector<TaskResult> tasks = read_task_results(step);
  double loss = 0, weight = 0;
  for (size_t task = 0; task < 2; ++task) {
    const std::vector<data::Sample> own(samples_.begin() + 4 * static_cast<int64_t>(task),
                                        samples_.begin() + 4 * static_cast<int64_t>(task) + 4);
    EXPECT_NEAR(tasks[task].loss / compute_gradients(own, {.micro_batch_size = 4}).loss, 1, 1e-6);
    loss += tasks[task].loss * tasks[task].counts.label_weight;
    weight += tasks[task].counts.label_weight;
  }
  EXPECT_NEAR(loss / weight / step.loss.item<double>(), 1, 1e-6);
}

/// A sample of a dry run has the tensors of the sample that it stands for.
TEST_F(LabelWeights, MetaSamplesHaveWeights) {
  const data::SampleShape shape = data::get_sample_shape(samples_[1]);
  EXPECT_TRUE(shape.has_label_weights);
  const std::vector<data::Sample> meta_samples{data::make_meta_sample(shape)};
  EXPECT_EQ(data::get_sample_shape(meta_samples[0]), shape);
  EXPECT_EQ(data::collate(meta_samples).label_weights.numel(), shape.label_tokens);
  EXPECT_FALSE(data::get_sample_shape(samples_[0]).has_label_weights);
}

}  // namespace
}  // namespace vlmtrain::engine

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"

namespace vlmtrain::engine {
namespace {

using parity::Deviations;
using parity::has_zero_true_gradient;
using parity::relative_difference;

class Accumulation : public testing::Test {
 protected:
  Gradients gradients(const SmallStep& step, models::RecomputeBlockCounts recompute = {}) {
    const auto model = parity::Case("mixed_batch").load_model();
    model->set_recompute_block_counts(recompute);
    Gradients actual{accumulate_gradients(*model, samples_, step).loss.item<double>(), {}};
    for (const auto& parameter : model->parameters().all()) actual.by_name[parameter.name] = parameter.tensor.grad();
    return actual;
  }

  const std::vector<data::Sample> samples_ = batch_of_eight();
};

/// Two orders of the same fp32 sums differ by a few roundings (6e-8) in each of about twenty
/// products and norms between loss and tower, which cancellation in softmax's backward pass
/// amplifies. The amount depends on the processor's kernels. A wrong normalizer or a lost row would
/// cause 1e-3 and more.
constexpr double kGradientBound = 5e-6;

void expect_same(const Gradients& actual, const Gradients& expected, const std::string& label, Deviations& deviations) {
  deviations.expect_at_most(5e-7, std::abs(actual.loss / expected.loss - 1), "loss", label);
  ASSERT_EQ(actual.by_name.size(), expected.by_name.size());
  double largest = 0;
  for (const auto& [name, gradient] : expected.by_name)
    largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : expected.by_name) {
    if (has_zero_true_gradient(name)) {
      const double difference = (actual.by_name.at(name) - gradient).abs().max().item<double>();
      deviations.expect_at_most(1e-7, difference / largest, "gradient that is zero, of the largest", label);
      continue;
    }
    deviations.expect_at_most(kGradientBound, relative_difference(actual.by_name.at(name), gradient), "gradient",
                              fmt::format("{}, {}", label, name));
  }
}

TEST_F(Accumulation, SamplesAreUnequal) {
  std::set<int64_t> lengths, label_counts;
  for (const auto& sample : samples_) {
    lengths.insert(sample.tokens());
    label_counts.insert(sample.label_tokens());
  }
  EXPECT_EQ(lengths.size(), 8U);
  EXPECT_GE(label_counts.size(), 6U);
}

TEST_F(Accumulation, GradientDoesNotDependOnTheSplit) {
  const auto expected = gradients({.micro_batch_size = 8});
  Deviations deviations;
  for (const int64_t size : {1, 2, 3, 4})
    expect_same(gradients({.micro_batch_size = size}), expected, fmt::format("micro-batches of {}", size), deviations);
  deviations.report();
}

TEST_F(Accumulation, GradientDoesNotDependOnTheChunksOfTheLoss) {
  const auto expected = gradients({.micro_batch_size = 8});
  Deviations deviations;
  for (const int64_t rows : {1, 5, 64}) {
    expect_same(gradients({.micro_batch_size = 8, .loss_chunk_rows = rows}), expected,
                fmt::format("chunks of {}", rows), deviations);
  }
  deviations.report();
}

TEST_F(Accumulation, LossIsTheMeanOverAllLabelTokens) {
  double loss_sum = 0;
  int64_t labels = 0;
  const auto model = parity::Case("mixed_batch").load_model();
  const CrossEntropyObjective objective;
  for (const auto& sample : samples_) {
    const StepInput single_input{.objective = objective, .samples = {&sample, 1}, .normalizers = {1.0}};
    loss_sum +=
        accumulate(*model, single_input, {.split = split_evenly(1, 1), .recompute = {}}).result.loss.item<double>();
    labels += sample.label_tokens();
  }
  EXPECT_NEAR(gradients({.micro_batch_size = 4}).loss, loss_sum / static_cast<double>(labels), 2e-6);
}

TEST_F(Accumulation, CountsSamplesAndTokens) {
  const auto model = parity::Case("mixed_batch").load_model();
  const auto result = accumulate_gradients(*model, samples_, {.micro_batch_size = 3});
  StepResult expected;
  for (const auto& sample : samples_) {
    expected.tokens += sample.tokens();
    expected.label_tokens += sample.label_tokens();
    expected.num_media += sample.num_media();
  }
  EXPECT_EQ(result.samples, 8);
  EXPECT_EQ(result.num_micro_batches, 3);
  EXPECT_EQ(result.tokens, expected.tokens);
  EXPECT_EQ(result.label_tokens, expected.label_tokens);
  EXPECT_EQ(result.num_media, 6);
  EXPECT_EQ(expected.num_media, 6);
}

TEST_F(Accumulation, StepWithoutLabelsIsRejected) {
  auto samples = batch_of_eight();
  samples.resize(1);
  std::fill(samples[0].label_mask.begin(), samples[0].label_mask.end(), 0);
  const auto model = parity::Case("mixed_batch").load_model();
  EXPECT_THROW(accumulate_gradients(*model, samples, {}), InternalError);
}

struct RecomputeCase {
  const char* name;
  models::RecomputeBlockCounts recompute;
};

class Recomputation : public Accumulation, public testing::WithParamInterface<RecomputeCase> {};

TEST_P(Recomputation, GivesTheSameBits) {
  for (const int64_t size : {2, 8}) {
    const auto expected = gradients({.micro_batch_size = size});
    const auto actual = gradients({.micro_batch_size = size}, GetParam().recompute);
    EXPECT_EQ(actual.loss, expected.loss);
    for (const auto& [name, gradient] : expected.by_name) {
      EXPECT_TRUE(at::equal(actual.by_name.at(name), gradient))
          << name << " differs by " << relative_difference(actual.by_name.at(name), gradient);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RecomputeCase, Recomputation,
                         testing::Values(RecomputeCase{"Vision", {2, 0}}, RecomputeCase{"Language", {0, 2}},
                                         RecomputeCase{"Both", {2, 2}}, RecomputeCase{"Partial", {1, 1}},
                                         RecomputeCase{"ButForAttention", {2, 2, 2}},
                                         RecomputeCase{"ButForAttentionOfOne", {0, 2, 1}},
                                         RecomputeCase{"MoreThanThereAre", {9, 9}}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::engine

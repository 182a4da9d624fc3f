#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/batch_of_eight.h"
#include "engine/gradients.h"
#include "engine/small_step.h"
#include "parity/deviations.h"

namespace vlmtrain::engine {
namespace {

using parity::Deviations;
using parity::has_zero_true_gradient;
using parity::relative_difference;

class Accumulation : public testing::Test {
 protected:
  Gradients gradients(const SmallStep& step, models::RecomputeBlocks recompute = {}) {
    const auto model = parity::Case("mixed_batch").load_model();
    model->set_recompute(recompute);
    Gradients found{accumulate_gradients(*model, samples_, step).loss.item<double>(), {}};
    for (const auto& parameter : model->parameters().all()) found.by_name[parameter.name] = parameter.tensor.grad();
    return found;
  }

  const std::vector<data::Sample> samples_ = batch_of_eight();
};

/// Two orders of the same float32 sums differ by a few roundings (6e-8) of each of the some twenty products and norms
/// that a gradient of the tower has come through, and cancellation in softmax's backward pass makes more of it; how
/// they fall depends on the processor's kernels. A wrong normalizer or a lost row would be 1e-3 and more.
constexpr double kGradientBound = 5e-6;

void expect_same(const Gradients& found, const Gradients& wanted, const std::string& cut, Deviations& deviations) {
  deviations.expect_at_most(5e-7, std::abs(found.loss / wanted.loss - 1), "loss", cut);
  ASSERT_EQ(found.by_name.size(), wanted.by_name.size());
  double largest = 0;
  for (const auto& [name, gradient] : wanted.by_name) largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : wanted.by_name) {
    if (has_zero_true_gradient(name)) {
      const double difference = (found.by_name.at(name) - gradient).abs().max().item<double>();
      deviations.expect_at_most(1e-7, difference / largest, "gradient that is zero, of the largest", cut);
      continue;
    }
    deviations.expect_at_most(kGradientBound, relative_difference(found.by_name.at(name), gradient), "gradient",
                              fmt::format("{}, {}", cut, name));
  }
}

TEST_F(Accumulation, TheSamplesAreUnequal) {
  std::set<int64_t> lengths, label_counts;
  for (const auto& sample : samples_) {
    lengths.insert(sample.tokens());
    label_counts.insert(sample.label_tokens());
  }
  EXPECT_EQ(lengths.size(), 8U);
  EXPECT_GE(label_counts.size(), 6U);
}

TEST_F(Accumulation, GradientIsThatOfOneLargeBatchWhereverItIsCut) {
  const auto wanted = gradients({.micro_batch_size = 8});
  Deviations deviations;
  for (const int64_t size : {1, 2, 3, 4})
    expect_same(gradients({.micro_batch_size = size}), wanted, fmt::format("micro-batches of {}", size), deviations);
  deviations.report();
}

TEST_F(Accumulation, GradientDoesNotDependOnTheChunksOfTheLoss) {
  const auto wanted = gradients({.micro_batch_size = 8});
  Deviations deviations;
  for (const int64_t rows : {1, 5, 64}) {
    expect_same(gradients({.micro_batch_size = 8, .loss_chunk_rows = rows}), wanted, fmt::format("chunks of {}", rows),
                deviations);
  }
  deviations.report();
}

TEST_F(Accumulation, LossIsTheMeanOverTheLabelTokensOfAll) {
  double total = 0;
  int64_t labels = 0;
  const auto model = parity::Case("mixed_batch").load_model();
  const CrossEntropy objective;
  for (const auto& sample : samples_) {
    const StepInput alone{.objective = objective, .samples = {&sample, 1}, .normalizers = {1.0}};
    total += accumulate(*model, alone, {.cut = equal_cut(1, 1), .recompute = {}}).result.loss.item<double>();
    labels += sample.label_tokens();
  }
  EXPECT_NEAR(gradients({.micro_batch_size = 4}).loss, total / static_cast<double>(labels), 2e-6);
}

TEST_F(Accumulation, CountsWhatAStepSaw) {
  const auto model = parity::Case("mixed_batch").load_model();
  const auto result = accumulate_gradients(*model, samples_, {.micro_batch_size = 3});
  StepResult wanted;
  for (const auto& sample : samples_) {
    wanted.tokens += sample.tokens();
    wanted.label_tokens += sample.label_tokens();
    wanted.images += sample.images;
  }
  EXPECT_EQ(result.samples, 8);
  EXPECT_EQ(result.micro_batches, 3);
  EXPECT_EQ(result.tokens, wanted.tokens);
  EXPECT_EQ(result.label_tokens, wanted.label_tokens);
  EXPECT_EQ(result.images, 6);
  EXPECT_EQ(wanted.images, 6);
}

TEST_F(Accumulation, StepWithoutALabelIsRefused) {
  auto samples = batch_of_eight();
  samples.resize(1);
  std::fill(samples[0].is_label.begin(), samples[0].is_label.end(), 0);
  const auto model = parity::Case("mixed_batch").load_model();
  EXPECT_THROW(accumulate_gradients(*model, samples, {}), InternalError);
}

struct Blocks {
  const char* name;
  models::RecomputeBlocks recompute;
};

class Recomputation : public Accumulation, public testing::WithParamInterface<Blocks> {};

TEST_P(Recomputation, GivesTheSameBits) {
  for (const int64_t size : {2, 8}) {
    const auto wanted = gradients({.micro_batch_size = size});
    const auto found = gradients({.micro_batch_size = size}, GetParam().recompute);
    EXPECT_EQ(found.loss, wanted.loss);
    for (const auto& [name, gradient] : wanted.by_name) {
      EXPECT_TRUE(at::equal(found.by_name.at(name), gradient))
          << name << " differs by " << relative_difference(found.by_name.at(name), gradient);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, Recomputation,
                         testing::Values(Blocks{"Vision", {2, 0}}, Blocks{"Language", {0, 2}}, Blocks{"Both", {2, 2}},
                                         Blocks{"Partial", {1, 1}}, Blocks{"ButForAttention", {2, 2, 2}},
                                         Blocks{"ButForAttentionOfOne", {0, 2, 1}}, Blocks{"MoreThanThereAre", {9, 9}}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::engine

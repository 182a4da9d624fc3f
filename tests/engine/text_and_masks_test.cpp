#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <gmock/gmock.h>

#include <span>

#include "engine/small_step.h"
#include "models/mask_samples.h"
#include "parity/deviations.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::engine {
namespace {

using parity::Deviations;
using parity::has_zero_true_gradient;
using parity::relative_difference;

constexpr TextAndMaskLossWeights kWeights{.text = 0.7, .bce = 2.0, .dice = 0.5};

struct StepOptions {
  MicroBatchSplit split = {};
  models::RecomputeBlockCounts recompute = {};
  int64_t images_per_pass = 0;
  models::FrozenParts frozen = {};
};

class TextAndMasksTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { data_ = std::make_unique<models::MaskSamples>(); }
  static void TearDownTestSuite() { data_.reset(); }

  std::unique_ptr<models::VisionLanguageModel> model() const {
    return models::load_model(data_->checkpoint(), at::kCPU, at::kFloat);
  }

  struct StepOutput {
    Gradients gradients;
    ObjectiveMetrics metrics;
  };

  StepOutput step(const StepOptions& options, std::span<const data::Sample> samples) const {
    const auto loaded_model = model();
    models::freeze_parts(*loaded_model, options.frozen);
    const TextAndMasksObjective objective({}, kWeights);
    MicroBatchSplit split = options.split;
    if (split.sizes.empty()) split = split_evenly(std::ssize(samples), std::ssize(samples));
    const auto accumulation = accumulate(
        *loaded_model, make_step_input(objective, samples),
        {.split = std::move(split), .recompute = options.recompute, .vision_tiles_per_pass = options.images_per_pass});
    StepOutput actual{.gradients = {accumulation.result.loss.item<double>(), {}}, .metrics = {}};
    for (const auto& parameter : loaded_model->parameters().all()) {
      if (parameter.tensor.grad().defined()) actual.gradients.by_name[parameter.name] = parameter.tensor.grad();
    }
    const at::Tensor scalars = accumulation.loss->compute_metric_scalars().to(at::kDouble);
    actual.metrics =
        objective.compute_metrics({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())}, {});
    return actual;
  }

  StepOutput step(const StepOptions& options) const { return step(options, samples_); }

  static std::unique_ptr<models::MaskSamples> data_;
  const std::vector<data::Sample> samples_ = data_->samples();
};

std::unique_ptr<models::MaskSamples> TextAndMasksTest::data_;

void expect_same_step(const Gradients& actual, const Gradients& expected, const std::string& label,
                      Deviations& deviations) {
  deviations.expect_at_most(1e-6, std::abs(actual.loss / expected.loss - 1), "loss", label);
  ASSERT_EQ(actual.by_name.size(), expected.by_name.size()) << label;
  for (const auto& [name, gradient] : expected.by_name) {
    // A bias of keys shifts all scores of a query equally: its true gradient is zero.
    if (has_zero_true_gradient(name) || name.ends_with("k_proj.bias")) continue;
    // Few tokens of the decoder attend to each other, so sums of products nearly cancel.
    deviations.expect_at_most(3e-5, relative_difference(actual.by_name.at(name), gradient), "gradient",
                              fmt::format("{}, {}", label, name));
  }
}

TEST_F(TextAndMasksTest, LossAndGradientsDoNotDependOnTheSplit) {
  const auto expected = step({}).gradients;
  Deviations deviations;
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{1, 1, 1, 1, 1, 1}, std::vector<int64_t>{2, 2, 2}, std::vector<int64_t>{1, 3, 2}}) {
    MicroBatchSplit split = split_in_order(sizes);
    split.order = {3, 1, 0, 5, 4, 2};
    expect_same_step(step({.split = split}).gradients, expected, fmt::format("{} micro-batches", sizes.size()),
                     deviations);
  }
  expect_same_step(step({.images_per_pass = 1}).gradients, expected, "an image at a time", deviations);
  deviations.report();
}

TEST_F(TextAndMasksTest, RecomputationGivesTheSameBits) {
  const auto expected = step({}).gradients;
  const auto loaded_model = model();
  ASSERT_GT(loaded_model->num_vision_blocks(), 5);
  for (const int64_t vision : {int64_t{1}, int64_t{5}, loaded_model->num_vision_blocks()}) {
    const auto actual = step({.recompute = {.vision = vision, .language = 2}}).gradients;
    EXPECT_EQ(actual.loss, expected.loss);
    for (const auto& [name, gradient] : expected.by_name) {
      EXPECT_TRUE(at::equal(actual.by_name.at(name), gradient)) << name << ", " << vision << " blocks";
    }
  }
}

/// Compares with the formulas on the whole squares.
TEST_F(TextAndMasksTest, PartsAreMeansOverTheGlobalBatch) {
  const auto actual = step({});
  const auto loaded_model = model();
  const at::NoGradGuard no_gradients;
  const auto batch = data::collate(samples_);
  const auto hidden = loaded_model->forward(batch, {.positions = batch.masks.prediction_positions}).hidden_states;
  const auto logits = loaded_model->compute_mask_logits(batch.masks, hidden, 0);
  double cross_entropy = 0, dice = 0, pixels = 0;
  for (int64_t i = 0; i < batch.masks.count(); ++i) {
    const auto& part = batch.masks.valid_regions[static_cast<size_t>(i)];
    const auto crop = [&](const at::Tensor& square) {
      return square.narrow(0, 0, part.rows).narrow(1, 0, part.columns).to(at::kDouble);
    };
    const auto predicted = crop(at::upsample_bilinear2d(logits.narrow(0, i, 1).unsqueeze(0), {128, 128}, false)[0][0]);
    const auto target = crop(batch.masks.targets[i]);
    const auto probability = predicted.sigmoid();
    cross_entropy += at::binary_cross_entropy_with_logits(predicted, target, {}, {}, at::Reduction::Sum).item<double>();
    dice += 1 - (2 * (probability * target).sum().item<double>() + 1e-5) /
                    ((probability + target).sum().item<double>() + 1e-5);
    pixels += static_cast<double>(part.pixels());
  }
  ASSERT_TRUE(actual.metrics.masks);
  EXPECT_NEAR(actual.metrics.masks->bce, cross_entropy / pixels, 1e-6);
  EXPECT_NEAR(actual.metrics.masks->dice, dice / 5, 1e-6);
  EXPECT_NEAR(
      actual.gradients.loss,
      kWeights.text * actual.metrics.masks->text + kWeights.bce * cross_entropy / pixels + kWeights.dice * dice / 5,
      1e-5);
}

TEST_F(TextAndMasksTest, NormalizersAreOfAllSamples) {
  const auto normalizers = TextAndMasksObjective({}, kWeights).compute_normalizers(samples_);
  ASSERT_EQ(normalizers.size(), 3U);
  EXPECT_EQ(normalizers[1], 5) << "masks";
  // Three masks of 128 × 96 pixels in squares of 128; 160 × 90 resized to 128 × 72; 50 × 50 resized
  // to 128 × 128.
  EXPECT_EQ(normalizers[2], 3 * 128 * 96 + 128 * 72 + 128 * 128) << "pixels without padding";
}

TEST_F(TextAndMasksTest, SamplesWithoutMasksDoNotTrainTheMaskDecoder) {
  const std::vector<data::Sample> text_samples{samples_[1], samples_[3]};
  const auto actual = step({}, text_samples);
  for (const auto& [name, gradient] : actual.gradients.by_name)
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("mask_")));
  EXPECT_EQ(actual.metrics.masks->dice, 0);
  EXPECT_NEAR(actual.gradients.loss, kWeights.text * actual.metrics.masks->text, 1e-6);
}

TEST_F(TextAndMasksTest, AFrozenEncoderHasNoGradients) {
  const auto actual = step({.frozen = {.mask_encoder = true}}).gradients;
  int64_t num_decoder_gradients = 0;
  for (const auto& [name, gradient] : actual.by_name) {
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("vision_encoder")));
    num_decoder_gradients += name.find("mask_decoder") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_decoder_gradients, 0);
}

TEST_F(TextAndMasksTest, StatisticsOfNormsAreNotTrained) {
  const auto loaded_model = model();
  int64_t num_constants = 0;
  for (const auto& parameter : loaded_model->parameters().all()) {
    if (parameter.component != nn::Component::kBuffer) continue;
    ++num_constants;
    EXPECT_FALSE(parameter.tensor.requires_grad()) << parameter.name;
  }
  EXPECT_GT(num_constants, 2);
}

}  // namespace
}  // namespace vlmtrain::engine

#include "vlmtrain/engine/text_and_masks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <span>

#include "engine/gradients.h"
#include "models/mask_samples.h"
#include "parity/deviations.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::engine {
namespace {

using parity::Deviations;
using parity::has_zero_true_gradient;
using parity::relative_difference;

constexpr MaskLossWeights kWeights{.text = 0.7, .bce = 2.0, .dice = 0.5};

struct How {
  Cut cut = {};
  models::RecomputeBlocks recompute = {};
  int64_t pictures_per_pass = 0;
  models::FrozenParts frozen = {};
};

class TextAndMasksTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { data_ = std::make_unique<models::MaskSamples>(); }
  static void TearDownTestSuite() { data_.reset(); }

  std::unique_ptr<models::VisionLanguageModel> model() const {
    return models::load_model(data_->checkpoint(), at::kCPU, at::kFloat);
  }

  struct Found {
    Gradients gradients;
    ObjectiveMetrics metrics;
  };

  Found step(const How& how, std::span<const data::Sample> samples) const {
    const auto loaded = model();
    models::freeze(*loaded, how.frozen);
    const TextAndMasks objective({}, kWeights);
    Cut cut = how.cut;
    if (cut.sizes.empty()) cut = equal_cut(std::ssize(samples), std::ssize(samples));
    const auto done =
        accumulate(*loaded, step_input(objective, samples),
                   {.cut = std::move(cut), .recompute = how.recompute, .vision_tiles_per_pass = how.pictures_per_pass});
    Found found{.gradients = {done.result.loss.item<double>(), {}}, .metrics = {}};
    for (const auto& parameter : loaded->parameters().all()) {
      if (parameter.tensor.grad().defined()) found.gradients.by_name[parameter.name] = parameter.tensor.grad();
    }
    const at::Tensor numbers = done.loss->numbers().to(at::kDouble);
    found.metrics = objective.metrics({numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())}, {});
    return found;
  }

  Found step(const How& how) const { return step(how, samples_); }

  static std::unique_ptr<models::MaskSamples> data_;
  const std::vector<data::Sample> samples_ = data_->samples();
};

std::unique_ptr<models::MaskSamples> TextAndMasksTest::data_;

void expect_same(const Gradients& found, const Gradients& wanted, const std::string& how, Deviations& deviations) {
  deviations.expect_at_most(1e-6, std::abs(found.loss / wanted.loss - 1), "loss", how);
  ASSERT_EQ(found.by_name.size(), wanted.by_name.size()) << how;
  for (const auto& [name, gradient] : wanted.by_name) {
    // A key's bias moves all scores of a query alike: its true gradient is zero.
    if (has_zero_true_gradient(name) || name.ends_with("k_proj.bias")) continue;
    // Of the decoder's own tokens few attend to each other: sums of products that nearly cancel.
    deviations.expect_at_most(3e-5, relative_difference(found.by_name.at(name), gradient), "gradient",
                              fmt::format("{}, {}", how, name));
  }
}

TEST_F(TextAndMasksTest, LossAndGradientsAreThoseOfOneLargeBatchWhereverItIsCut) {
  const auto wanted = step({}).gradients;
  Deviations deviations;
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{1, 1, 1, 1, 1, 1}, std::vector<int64_t>{2, 2, 2}, std::vector<int64_t>{1, 3, 2}}) {
    Cut cut = cut_in_order(sizes);
    cut.order = {3, 1, 0, 5, 4, 2};
    expect_same(step({.cut = cut}).gradients, wanted, fmt::format("{} micro-batches", sizes.size()), deviations);
  }
  expect_same(step({.pictures_per_pass = 1}).gradients, wanted, "a picture at a time", deviations);
  deviations.report();
}

TEST_F(TextAndMasksTest, RecomputationGivesTheSameBits) {
  const auto wanted = step({}).gradients;
  const auto loaded = model();
  ASSERT_GT(loaded->vision_blocks(), 5);
  for (const int64_t vision : {int64_t{1}, int64_t{5}, loaded->vision_blocks()}) {
    const auto found = step({.recompute = {.vision = vision, .language = 2}}).gradients;
    EXPECT_EQ(found.loss, wanted.loss);
    for (const auto& [name, gradient] : wanted.by_name) {
      EXPECT_TRUE(at::equal(found.by_name.at(name), gradient)) << name << ", " << vision << " blocks";
    }
  }
}

/// Of formulas written once more, on the whole squares.
TEST_F(TextAndMasksTest, PartsAreMeansOverTheGlobalBatch) {
  const auto found = step({});
  const auto loaded = model();
  const at::NoGradGuard no_gradients;
  const auto batch = data::collate(samples_);
  const auto hidden = loaded->forward(batch, {.positions = batch.masks.positions}).hidden;
  const auto logits = loaded->mask_logits(batch.masks, hidden, 0);
  double cross_entropy = 0, dice = 0, pixels = 0;
  for (int64_t i = 0; i < batch.masks.count(); ++i) {
    const auto& part = batch.masks.filled[static_cast<size_t>(i)];
    const auto cut = [&](const at::Tensor& square) {
      return square.narrow(0, 0, part.rows).narrow(1, 0, part.columns).to(at::kDouble);
    };
    const auto drawn = cut(at::upsample_bilinear2d(logits.narrow(0, i, 1).unsqueeze(0), {128, 128}, false)[0][0]);
    const auto truth = cut(batch.masks.targets[i]);
    const auto share = drawn.sigmoid();
    cross_entropy += at::binary_cross_entropy_with_logits(drawn, truth, {}, {}, at::Reduction::Sum).item<double>();
    dice += 1 - (2 * (share * truth).sum().item<double>() + 1e-5) / ((share + truth).sum().item<double>() + 1e-5);
    pixels += static_cast<double>(part.pixels());
  }
  ASSERT_TRUE(found.metrics.masks);
  EXPECT_NEAR(found.metrics.masks->bce, cross_entropy / pixels, 1e-6);
  EXPECT_NEAR(found.metrics.masks->dice, dice / 5, 1e-6);
  EXPECT_NEAR(
      found.gradients.loss,
      kWeights.text * found.metrics.masks->text + kWeights.bce * cross_entropy / pixels + kWeights.dice * dice / 5,
      1e-5);
}

TEST_F(TextAndMasksTest, NormalizersAreOfAllSamples) {
  const auto normalizers = TextAndMasks({}, kWeights).normalizers(samples_);
  ASSERT_EQ(normalizers.size(), 3U);
  EXPECT_EQ(normalizers[1], 5) << "masks";
  // Three in 128 × 96 pixels that fill a square of 128; 160 × 90 that become 128 × 72; 50 × 50 that become 128 × 128.
  EXPECT_EQ(normalizers[2], 3 * 128 * 96 + 128 * 72 + 128 * 128) << "pixels without padding";
}

TEST_F(TextAndMasksTest, SamplesWithoutMasksTrainNothingThatDraws) {
  const std::vector<data::Sample> words{samples_[1], samples_[3]};
  const auto found = step({}, words);
  for (const auto& [name, gradient] : found.gradients.by_name)
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("mask_")));
  EXPECT_EQ(found.metrics.masks->dice, 0);
  EXPECT_NEAR(found.gradients.loss, kWeights.text * found.metrics.masks->text, 1e-6);
}

TEST_F(TextAndMasksTest, AFrozenEncoderHasNoGradients) {
  const auto found = step({.frozen = {.mask_encoder = true}}).gradients;
  int64_t of_decoder = 0;
  for (const auto& [name, gradient] : found.by_name) {
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("vision_encoder")));
    of_decoder += name.find("mask_decoder") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(of_decoder, 0);
}

TEST_F(TextAndMasksTest, StatisticsOfNormsAreNotTrained) {
  const auto loaded = model();
  int64_t constants = 0;
  for (const auto& parameter : loaded->parameters().all()) {
    if (parameter.component != nn::Component::kConstant) continue;
    ++constants;
    EXPECT_FALSE(parameter.tensor.requires_grad()) << parameter.name;
  }
  EXPECT_GT(constants, 2);
}

}  // namespace
}  // namespace vlmtrain::engine

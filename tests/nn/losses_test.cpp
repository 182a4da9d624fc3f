#include "vlmtrain/nn/layers/losses.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>

#include "parity/deviations.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kLabels = 13;
constexpr int64_t kTasks = 3;
constexpr double kNormalizer = 40.0;

using parity::relative_difference;

class PerTaskLossTest : public testing::TestWithParam<int64_t> {
 protected:
  PerTaskLossTest() {
    at::manual_seed(1);
    hidden_ = at::randn({kLabels, 8}).set_requires_grad(true);
    weight_ = at::randn({31, 8}).set_requires_grad(true);
    labels_ = at::randint(31, {kLabels}, at::kLong);
    // Some labels are predicted correctly.
    labels_.narrow(0, 0, 5).copy_(at::matmul(hidden_, weight_.t()).detach().argmax(1).narrow(0, 0, 5));
    tasks_ = at::tensor({0, 2, 2, 0, 1, 2, 0, 1, 2, 2, 0, 0, 2}, at::kLong);
    row_weights_ = at::tensor({0.5, 2.0, 1.25}, at::kFloat).index_select(0, tasks_);
  }

  PerTaskLoss make_per_task_loss(bool is_weighted, bool has_scale_gradients) const {
    return {.task_one_hot = tasks_.eq(at::tensor({0, 1, 2}, at::kLong).unsqueeze(1)).to(at::kFloat),
            .weights = is_weighted ? row_weights_ : at::Tensor(),
            .sums = at::zeros({kTasks, 2}),
            .feature_scale_gradients = has_scale_gradients ? at::zeros({kTasks, 8}) : at::Tensor()};
  }

  /// Returns the cross-entropy by its formula, [rows].
  at::Tensor cross_entropy(const at::Tensor& hidden) const {
    const at::Tensor likelihoods = at::log_softmax(at::matmul(hidden, weight_.t()), 1);
    return -likelihoods.gather(1, labels_.unsqueeze(1)).squeeze(1);
  }

  at::Tensor hidden_, weight_, labels_, tasks_, row_weights_;
};

TEST_P(PerTaskLossTest, WeightsEachRow) {
  const auto actual =
      linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam(), make_per_task_loss(true, true));
  const auto expected = (cross_entropy(hidden_) * row_weights_).sum() / kNormalizer;
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-6);
  const auto actual_gradients = torch::autograd::grad({actual * 3}, {hidden_, weight_});
  const auto expected_gradients = torch::autograd::grad({expected * 3}, {hidden_, weight_});
  EXPECT_LT(relative_difference(actual_gradients[0], expected_gradients[0]), 1e-6);
  EXPECT_LT(relative_difference(actual_gradients[1], expected_gradients[1]), 1e-6);
}

TEST_P(PerTaskLossTest, SumsPerTask) {
  const auto tasks = make_per_task_loss(true, false);
  linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam(), tasks);
  const auto entropies = cross_entropy(hidden_);
  const auto is_right = at::matmul(hidden_, weight_.t()).argmax(1).eq(labels_).to(at::kFloat);
  ASSERT_GE(is_right.sum().item<double>(), 5);
  for (int64_t task = 0; task < kTasks; ++task) {
    const auto members = tasks.task_one_hot.select(0, task);
    EXPECT_NEAR(tasks.sums.select(0, task).select(0, 0).item<double>(), (entropies * members).sum().item<double>(),
                1e-5);
    EXPECT_EQ(tasks.sums.select(0, task).select(0, 1).item<double>(), (is_right * members).sum().item<double>());
  }
  const auto sums_after_first_call = tasks.sums.clone();
  linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam(), tasks);
  EXPECT_LT(relative_difference(tasks.sums, sums_after_first_call * 2), 1e-6) << "sums of a second call are added";
}

/// Also with hidden states without gradients: the case of a text-only batch when only the vision
/// tower is trained.
TEST_P(PerTaskLossTest, GivesScaleGradientsPerTask) {
  for (const bool is_weighted : {false, true}) {
    for (const bool is_trained : {false, true}) {
      const auto tasks = make_per_task_loss(is_weighted, true);
      const auto loss = linear_cross_entropy(is_trained ? hidden_ : hidden_.detach(), {weight_.detach()}, labels_,
                                             kNormalizer, GetParam(), tasks);
      EXPECT_EQ(loss.requires_grad(), is_trained);
      const auto scale = at::ones({8}).set_requires_grad(true);
      auto losses = cross_entropy(hidden_.detach() * scale) / kNormalizer;
      if (is_weighted) losses = losses * row_weights_;
      for (int64_t task = 0; task < kTasks; ++task) {
        const auto expected = torch::autograd::grad({(losses * tasks.task_one_hot.select(0, task)).sum()}, {scale}, {},
                                                    /*retain_graph=*/true);
        EXPECT_LT(relative_difference(tasks.feature_scale_gradients.select(0, task), expected[0]), 2e-6);
      }
    }
  }
}

TEST_P(PerTaskLossTest, PerTaskSumsDoNotChangeTheLoss) {
  const auto plain = linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam());
  const auto with_sums =
      linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam(), make_per_task_loss(false, false));
  EXPECT_EQ(with_sums.item<double>(), plain.item<double>());
  const auto expected = torch::autograd::grad({plain}, {hidden_, weight_});
  const auto actual = torch::autograd::grad({with_sums}, {hidden_, weight_});
  EXPECT_TRUE(at::equal(actual[0], expected[0]));
  EXPECT_TRUE(at::equal(actual[1], expected[1]));
}

/// Returns weights from 0.05 to 1, of which some are 1.
at::Tensor make_label_weights() {
  return at::tensor({0.5, 1.0, 0.05, 1.0, 0.25, 0.75, 0.5, 1.0, 0.3, 0.1, 1.0, 0.9, 0.6}, at::kFloat);
}

/// As torch.nn.CrossEntropyLoss(reduction="mean") with these weights, in fp64.
TEST_P(PerTaskLossTest, LabelWeightsGiveTheWeightedMean) {
  const at::Tensor weights = make_label_weights();
  const double weight_sum = weights.to(at::kDouble).sum().item<double>();
  const at::Tensor hidden = hidden_.detach().to(at::kDouble).set_requires_grad(true),
                   output = weight_.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor entropies =
      -at::log_softmax(at::matmul(hidden, output.t()), 1).gather(1, labels_.unsqueeze(1)).squeeze(1);
  const at::Tensor expected = (entropies * weights.to(at::kDouble)).sum() / weight_sum;
  const at::Tensor actual = linear_cross_entropy(hidden_, {weight_}, labels_, weight_sum, GetParam(), weights);
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 5e-7 * expected.item<double>());
  const auto actual_gradients = torch::autograd::grad({actual}, {hidden_, weight_});
  const auto expected_gradients = torch::autograd::grad({expected}, {hidden, output});
  EXPECT_LT(relative_difference(actual_gradients[0], expected_gradients[0]), 1e-6);
  EXPECT_LT(relative_difference(actual_gradients[1], expected_gradients[1]), 1e-6);
}

TEST_P(PerTaskLossTest, LabelWeightsOfOneKeepTheLoss) {
  const at::Tensor ones = at::ones({kLabels});
  const auto plain = linear_cross_entropy(hidden_, {weight_}, labels_, kLabels, GetParam());
  EXPECT_EQ(linear_cross_entropy(hidden_, {weight_}, labels_, kLabels, GetParam(), ones).item<double>(),
            plain.item<double>());
}

/// The weights of labels and tasks multiply. The sums by task have only those of labels.
TEST_P(PerTaskLossTest, LabelWeightsMultiplyThoseOfTasks) {
  const at::Tensor weights = make_label_weights();
  const auto tasks = make_per_task_loss(true, true);
  const auto actual = linear_cross_entropy(hidden_, {weight_}, labels_, kNormalizer, GetParam(), tasks, weights);
  const auto expected = (cross_entropy(hidden_) * row_weights_ * weights).sum() / kNormalizer;
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-6);
  const auto actual_gradients = torch::autograd::grad({actual}, {hidden_, weight_});
  const auto expected_gradients = torch::autograd::grad({expected}, {hidden_, weight_});
  EXPECT_LT(relative_difference(actual_gradients[0], expected_gradients[0]), 1e-6);
  EXPECT_LT(relative_difference(actual_gradients[1], expected_gradients[1]), 1e-6);
  const auto scale = at::ones({8}).set_requires_grad(true);
  const auto losses = cross_entropy(hidden_.detach() * scale) * row_weights_ * weights / kNormalizer;
  const auto is_right = at::matmul(hidden_, weight_.t()).argmax(1).eq(labels_).to(at::kFloat);
  for (int64_t task = 0; task < kTasks; ++task) {
    const auto members = tasks.task_one_hot.select(0, task);
    EXPECT_NEAR(tasks.sums[task][0].item<double>(), (cross_entropy(hidden_) * weights * members).sum().item<double>(),
                1e-5);
    EXPECT_EQ(tasks.sums[task][1].item<double>(), (is_right * members).sum().item<double>());
    const auto expected_scales = torch::autograd::grad({(losses * members).sum()}, {scale}, {}, /*retain_graph=*/true);
    EXPECT_LT(relative_difference(tasks.feature_scale_gradients[task], expected_scales[0]), 2e-6);
  }
}

TEST_P(PerTaskLossTest, LabelWeightsMustMatchTheLabels) {
  EXPECT_THROW(linear_cross_entropy(hidden_, {weight_}, labels_, kLabels, GetParam(), at::ones({kLabels - 1})),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(ChunkRows, PerTaskLossTest, testing::Values(1, 4, 13, 100));

using parity::relative_difference;
using Sizes = std::vector<std::array<int64_t, 2>>;

class MaskLossTest : public testing::Test {
 protected:
  MaskLossTest() {
    at::manual_seed(1);
    logits_ = (at::randn({5, 8, 6}) * 3).set_requires_grad(true);
    targets_ = at::rand({5, 32, 24}).lt(0.3).to(at::kByte);
    targets_[3].zero_();
  }

  MaskLoss loss(const at::Tensor& logits, int64_t first = 0, int64_t count = 5) const {
    return mask_loss(logits.narrow(0, first, count), targets_.narrow(0, first, count),
                     Sizes(sizes_.begin() + first, sizes_.begin() + first + count), 2.0, 0.5, kPixels, kMasks);
  }

  static at::Tensor gradient(const at::Tensor& loss, const at::Tensor& input) {
    return torch::autograd::grad({loss * 3}, {input})[0];
  }

  static constexpr double kPixels = 4000, kMasks = 7;
  at::Tensor logits_, targets_;
  const Sizes sizes_{{32, 24}, {20, 24}, {32, 5}, {31, 23}, {1, 1}};
};

TEST_F(MaskLossTest, MatchesTheFormula) {
  const at::Tensor resized =
      at::upsample_bilinear2d(logits_.to(at::kDouble).unsqueeze(1), {32, 24}, /*align_corners=*/false).squeeze(1);
  at::Tensor entropy = at::zeros({}, at::kDouble), dice = at::zeros({}, at::kDouble);
  for (int64_t i = 0; i < 5; ++i) {
    const auto [rows, columns] = sizes_[static_cast<size_t>(i)];
    const at::Tensor x = resized[i].narrow(0, 0, rows).narrow(1, 0, columns);
    const at::Tensor g = targets_[i].narrow(0, 0, rows).narrow(1, 0, columns).to(at::kDouble);
    const at::Tensor p = x.sigmoid();
    entropy = entropy - (p.log() * g + (1 - p).log() * (1 - g)).sum();
    dice = dice + 1 - ((p * g).sum() * 2 + 1e-5) / (p.sum() + g.sum() + 1e-5);
  }
  const at::Tensor expected = entropy * (2.0 / kPixels) + dice * (0.5 / kMasks);
  const MaskLoss actual = loss(logits_);
  EXPECT_NEAR(actual.loss.item<double>(), expected.item<double>(), 1e-6);
  EXPECT_NEAR(actual.sums[0].item<double>(), entropy.item<double>() / kPixels, 1e-6);
  EXPECT_NEAR(actual.sums[1].item<double>(), dice.item<double>() / kMasks, 1e-6);
  EXPECT_FALSE(actual.sums.requires_grad());
  EXPECT_LT(relative_difference(gradient(actual.loss, logits_), gradient(expected, logits_)), 1e-6);
}

TEST_F(MaskLossTest, MatchesMonaiAndPyTorch) {
  const auto reference = io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/nn/data/mask_loss.json");
  const auto read_tensor = [&](const char* name) {
    return at::tensor(reference.at(name).get<std::vector<double>>(), at::kFloat);
  };
  const int64_t rows = reference.at("rows"), columns = reference.at("columns");
  const at::Tensor logits =
      read_tensor("logits").view({3, reference.at("height"), reference.at("width")}).set_requires_grad(true);
  const at::Tensor targets = read_tensor("targets").to(at::kByte).view({3, rows, columns});
  const Sizes whole(3, {rows, columns});
  const MaskLoss bce = mask_loss(logits, targets, whole, 1.0, 0.0, 1.0, 1.0);
  const MaskLoss dice = mask_loss(logits, targets, whole, 0.0, 1.0, 1.0, 1.0);
  EXPECT_NEAR(bce.loss.item<double>() / reference.at("bce").get<double>(), 1.0, 1e-6);
  EXPECT_NEAR(dice.loss.item<double>() / reference.at("dice").get<double>(), 1.0, 1e-6);
  const auto compute_gradient = [&](const MaskLoss& loss) {
    return torch::autograd::grad({loss.loss}, {logits})[0].flatten();
  };
  EXPECT_LT(relative_difference(compute_gradient(bce), read_tensor("bce_gradient")), 1e-6);
  EXPECT_LT(relative_difference(compute_gradient(dice), read_tensor("dice_gradient")), 1e-6);
}

TEST_F(MaskLossTest, AddsUpForEverySplit) {
  const MaskLoss whole = loss(logits_);
  for (int64_t split_index = 0; split_index <= 5; ++split_index) {
    const MaskLoss first = loss(logits_, 0, split_index), second = loss(logits_, split_index, 5 - split_index);
    EXPECT_NEAR((first.loss + second.loss).item<double>(), whole.loss.item<double>(), 1e-6);
    EXPECT_LT(relative_difference(first.sums + second.sums, whole.sums), 1e-6);
    EXPECT_LT(relative_difference(gradient(first.loss + second.loss, logits_), gradient(loss(logits_).loss, logits_)),
              1e-7);
  }
}

TEST_F(MaskLossTest, PaddingCountsNothing) {
  const MaskLoss before = loss(logits_);
  const at::Tensor first = gradient(before.loss, logits_);
  targets_[1].narrow(0, 20, 12).fill_(1);
  targets_[2].narrow(1, 5, 19).fill_(1);
  const MaskLoss after = loss(logits_);
  EXPECT_EQ(before.loss.item<float>(), after.loss.item<float>());
  EXPECT_TRUE(first.equal(gradient(after.loss, logits_)));
}

TEST_F(MaskLossTest, EmptyMaskHasAGradient) {
  const at::Tensor empty_mask_gradient = gradient(loss(logits_).loss, logits_)[3];
  EXPECT_TRUE(empty_mask_gradient.isfinite().all().item<bool>());
  EXPECT_GT(empty_mask_gradient.min().item<float>(), 0);
}

TEST_F(MaskLossTest, SavesNothingWithoutGradients) {
  const MaskLoss actual = loss(logits_.detach());
  EXPECT_FALSE(actual.loss.requires_grad());
  EXPECT_EQ(actual.loss.item<float>(), loss(logits_).loss.item<float>());
}

TEST_F(MaskLossTest, RejectsMismatchedSizes) {
  EXPECT_THROW(mask_loss(logits_, targets_, Sizes(4, {32, 24}), 1, 1, 1, 1), InternalError);
  EXPECT_THROW(mask_loss(logits_, targets_, Sizes(5, {33, 24}), 1, 1, 1, 1), InternalError);
}

}  // namespace

}  // namespace vlmtrain::nn

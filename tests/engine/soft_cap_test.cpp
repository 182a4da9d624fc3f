#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/evaluation.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/engine/loss/objective.h"

namespace vlmtrain::engine {

namespace {

/// A model whose hidden states are 1. Its logits are its weight, with a soft cap.
class ConstantLogitsModel final : public models::VisionLanguageModel {
 public:
  explicit ConstantLogitsModel(const at::Tensor& logits, double logit_soft_cap = 0)
      : VisionLanguageModel({}), weight_(logits.unsqueeze(1)), logit_soft_cap_(logit_soft_cap) {}
  models::ImageFeatures get_image_features(const models::VisionInput&, bool) const override { return {}; }
  models::ModelOutput compute_hidden_states(const data::MicroBatch&, const models::ImageFeatures&,
                                            const models::OutputRequest& request, nn::GenerationCache*) const override {
    return {.hidden_states = at::ones({request.positions.numel(), 1})};
  }
  nn::OutputProjection output_projection() const override {
    return {.weight = weight_, .logit_soft_cap = logit_soft_cap_};
  }
  int64_t num_vision_blocks() const override { return 0; }
  int64_t num_language_blocks() const override { return 0; }

 private:
  at::Tensor weight_;
  double logit_soft_cap_;
};

/// A model with a soft cap, a model with the same logits as its weight, and one without the cap.
class SoftCap : public testing::Test {
 protected:
  static constexpr double kCap = 2;

  static data::Sample make_sample(std::vector<int64_t> tokens) {
    data::Sample sample;
    sample.label_mask.assign(tokens.size(), 1);
    sample.label_mask[0] = 0;
    sample.token_ids = std::move(tokens);
    return sample;
  }

  const at::Tensor logits_ = at::tensor({-1.0F, 0.5F, 3.0F, 6.0F, 2.0F});
  const at::Tensor capped_logits_ = at::tanh(logits_ / kCap) * kCap;
  const ConstantLogitsModel capped_{logits_, kCap}, expected_{capped_logits_}, uncapped_{logits_};
  const std::vector<data::Sample> samples_{make_sample({1, 3, 0, 2}), make_sample({2, 4})};
};

TEST_F(SoftCap, KeepsGreedyAnswers) {
  const std::vector<std::vector<int64_t>> expected{{3, 3, 3}, {3, 3, 3}};
  EXPECT_EQ(generate(capped_, samples_, {.max_new_tokens = 3}), expected);
  EXPECT_EQ(generate(uncapped_, samples_, {.max_new_tokens = 3}), expected);
}

TEST_F(SoftCap, ChangesTheProbabilitiesOfSampling) {
  constexpr int64_t kDraws = 2000;
  const auto sample_answer = [&](const ConstantLogitsModel& model) {
    return generate(model, {samples_[1]}, {.max_new_tokens = kDraws, .sampling = {.temperature = 1, .seed = 1}}).at(0);
  };
  const std::vector<int64_t> answer = sample_answer(capped_);
  EXPECT_EQ(answer, sample_answer(expected_));
  const at::Tensor frequencies = at::bincount(at::tensor(answer, at::kLong), {}, 5) / kDraws;
  // Four standard errors of a frequency of one half.
  constexpr double kTolerance = 0.045;
  EXPECT_LT((frequencies - at::softmax(capped_logits_, 0)).abs().max().item<double>(), kTolerance);
  EXPECT_GT((frequencies - at::softmax(logits_, 0)).abs().max().item<double>(), 2 * kTolerance);
}

TEST_F(SoftCap, AppliesToTheLossOfEvaluation) {
  const auto compute_loss_sums = [&](const ConstantLogitsModel& model) {
    return evaluate_batch(model, samples_, /*prompts=*/{}, /*layout=*/{}, /*generation=*/{}).loss_sums;
  };
  const auto loss_sums = compute_loss_sums(capped_), expected = compute_loss_sums(expected_),
             uncapped = compute_loss_sums(uncapped_);
  ASSERT_EQ(loss_sums.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(loss_sums[i], expected[i], 1e-6 * expected[i]);
    EXPECT_GT(std::abs(loss_sums[i] - uncapped[i]), 0.1);
  }
}

TEST_F(SoftCap, AppliesToTheLossOfTraining) {
  std::vector<data::Sample> samples = samples_;
  samples[1].task_index = 1;
  for (const bool is_multi_task : {false, true}) {
    const CrossEntropyObjective objective(is_multi_task ? TaskSettings{.num_tasks = 2} : TaskSettings{});
    const std::vector<int64_t> all{0, 1};
    const data::MicroBatch batch = objective.collate(samples, all);
    const auto compute_loss = [&](const ConstantLogitsModel& model) {
      return objective.begin_step(model, objective.compute_normalizers(samples), {})->forward(batch).item<double>();
    };
    EXPECT_NEAR(compute_loss(capped_), compute_loss(expected_), 1e-6);
    EXPECT_GT(std::abs(compute_loss(capped_) - compute_loss(uncapped_)), 0.1);
  }
}

}  // namespace

}  // namespace vlmtrain::engine

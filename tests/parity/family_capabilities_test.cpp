#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/small_step.h"
#include "parity/capability_record.h"
#include "parity/deviations.h"
#include "parity/distinct_samples.h"
#include "parity/exact_values.h"
#include "parity/logits.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using nn::Quantization;

/// Training mode; by default all weights are trained.
struct TrainingMode {
  std::optional<nn::LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;
};

/// Capabilities of each family, tested on a small random model without a reference. Each test is a
/// column of the table in docs/reference/models.md.
class FamilyCapabilities : public testing::TestWithParam<std::string> {
 protected:
  static TrainingMode make_lora_mode(Quantization quantization = Quantization::kNone) {
    return {nn::LoraSettings{.rank = 4}, quantization};
  }

  void TearDown() override { deviations_.report(); }

  /// Loads the model. Adapters have a nonzero B, so that the model differs from its base.
  std::unique_ptr<models::VisionLanguageModel> load(const TrainingMode& mode = {},
                                                    at::ScalarType dtype = at::kFloat) const {
    auto model = models::build_model(preset_.checkpoint(), at::kCPU, dtype, mode.lora, mode.quantization);
    models::load_weights(*model, preset_.checkpoint());
    if (!mode.lora) return model;
    models::initialize_adapter(*model, /*seed=*/5);
    const at::NoGradGuard no_gradients;
    for (const auto& parameter : model->parameters().all()) {
      if (parameter.name.ends_with("lora_B.weight")) parameter.tensor.copy_(make_waves_like(parameter.tensor) * 0.05);
    }
    return model;
  }

  /// Returns values in [-1, 1] that no model contains.
  static at::Tensor make_waves_like(const at::Tensor& tensor) {
    return at::sin(at::arange(tensor.numel(), at::kDouble) * 1.3 + 0.4).view(tensor.sizes());
  }

  at::Tensor compute_logits(const models::VisionLanguageModel& model) const {
    const at::NoGradGuard no_gradients;
    const auto batch = data::collate(samples_);
    return parity::compute_logits(model, model.forward(batch, {.positions = batch.label_positions}).hidden_states);
  }

  double compute_loss(const models::VisionLanguageModel& model) const {
    return at::cross_entropy_loss(compute_logits(model), data::collate(samples_).labels).item<double>();
  }
  double compute_loss(const io::Record& record) const {
    const std::vector<data::Sample> samples{data::make_sample(*processor_, record, 0)};
    const at::NoGradGuard no_gradients;
    const auto batch = data::collate(samples);
    const auto hidden = model_->forward(batch, {.positions = batch.label_positions}).hidden_states;
    return at::cross_entropy_loss(parity::compute_logits(*model_, hidden), batch.labels).item<double>();
  }

  /// Returns the components with trained parameters. Adapters exist for Linears, of which a
  /// projector may have none (Gemma 3).
  std::set<nn::Component> list_trained_components(const models::VisionLanguageModel& model) const {
    if (!preset_.takes_media()) return {nn::Component::kLanguageModel};
    std::set<nn::Component> components{nn::Component::kVisionTower, nn::Component::kLanguageModel};
    const auto& linears = model.parameters().linears();
    const bool has_linear =
        std::ranges::find(linears, nn::Component::kProjector, &nn::LinearInfo::component) != linears.end();
    if (has_linear || !model.parameters().lora()) components.insert(nn::Component::kProjector);
    return components;
  }

  /// Compares gradients as in training (fp32, one sample at a time, every block recomputed) with
  /// the exact gradient.
  void expect_exact_gradients(const TrainingMode& mode) {
    const auto model = load(mode);
    model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
    const auto result = engine::accumulate_gradients(*model, samples_, {.micro_batch_size = 1});
    const ExactValues exact(*load(mode, at::kDouble), samples_);
    deviations_.expect_at_most(1e-6, relative_difference(result.loss, exact.loss()), "loss", GetParam());
    std::set<nn::Component> components;
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      components.insert(parameter.component);
      if (has_zero_true_gradient(parameter.name)) continue;
      deviations_.expect_at_most(5e-5,
                                 relative_difference(drop_key_bias(parameter.name, gradient),
                                                     drop_key_bias(parameter.name, exact.gradient(parameter.name))),
                                 "gradient from float64", parameter.name);
    }
    EXPECT_THAT(components, testing::IsSupersetOf(list_trained_components(*model)));
  }

  /// Returns a direction in which a parameter moves. The row of the padding token, 0, stands still in
  /// tables of per-layer embeddings: media read it, but as in transformers it gets no gradient.
  static at::Tensor make_direction(const nn::Parameter& parameter) {
    at::Tensor direction = make_waves_like(parameter.tensor.detach());
    if (parameter.is_per_layer_table) direction[0].zero_();
    return direction;
  }

  /// Compares the gradient with the slope of the loss along a line through all trained parameters.
  void expect_gradient_is_slope(const TrainingMode& mode) {
    const auto model = load(mode, at::kDouble);
    const ExactValues exact(*model, samples_);
    constexpr double kStep = 1e-5;
    double slope = 0;
    const auto move_parameters = [&](double step_size) {
      const at::NoGradGuard no_gradients;
      for (const auto& parameter : model->parameters().all()) {
        if (parameter.tensor.grad().defined()) parameter.tensor.add_(make_direction(parameter), step_size);
      }
    };
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (gradient.defined()) slope += (gradient * make_direction(parameter)).sum().item<double>();
    }
    move_parameters(kStep);
    const double loss_above = compute_loss(*model);
    move_parameters(-2 * kStep);
    const double loss_below = compute_loss(*model);
    const double measured_slope = (loss_above - loss_below) / (2 * kStep);
    deviations_.expect_at_most(1e-5, std::abs(measured_slope / slope - 1), "slope of the loss", GetParam());
  }

  /// Expects steps to decrease the loss and to change only trained parameters.
  void expect_learning(const TrainingMode& mode) {
    const auto model = load(mode), initial_model = load(mode);
    engine::TrainingState training(*model, {});
    double first = 0, last = 0;
    for (int step = 0; step < 8; ++step) {
      last = engine::run_optimizer_step(training, samples_, {2e-3, 2e-3, 2e-3}, {.micro_batch_size = 2})
                 .loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.9 * first);
    int64_t num_moved = 0;
    for (size_t i = 0; i < model->parameters().all().size(); ++i) {
      const auto& parameter = model->parameters().all()[i];
      const bool is_same = at::equal(parameter.values(), initial_model->parameters().all()[i].values());
      num_moved += is_same ? 0 : 1;
      if (!is_same) {
        EXPECT_EQ(parameter.is_adapter, mode.lora.has_value()) << parameter.name;
      }
    }
    EXPECT_GT(num_moved, 0);
  }

  void expect_training(const TrainingMode& mode) {
    expect_exact_gradients(mode);
    expect_gradient_is_slope(mode);
    expect_learning(mode);
  }

  const io::Record& record(const std::string& id) const { return *std::ranges::find(records_, id, &io::Record::id); }

  const TinyPreset preset_{GetParam()};
  const std::unique_ptr<models::Processor> processor_ = models::load_processor(preset_.checkpoint(), {});
  const std::vector<io::Record> records_ = preset_.records();
  const std::vector<data::Sample> samples_ = make_distinct_samples(*processor_, records_);
  const std::unique_ptr<models::VisionLanguageModel> model_ = load();
  Deviations deviations_;
};

TEST_P(FamilyCapabilities, AllWeightsAreTrained) {
  record_capability(preset_.checkpoint(), "full");
  expect_training({});
}

TEST_P(FamilyCapabilities, AdaptersAreTrained) {
  record_capability(preset_.checkpoint(), "LoRA");
  expect_training(make_lora_mode());
}

TEST_P(FamilyCapabilities, AdaptersAreTrainedOnAQuantizedBase) {
  record_capability(preset_.checkpoint(), "NF4");
  expect_training(make_lora_mode(Quantization::kNf4));
}

/// Users of other trainers reported adapters without effect in use, and merged checkpoints without
/// them.
TEST_P(FamilyCapabilities, MergedCheckpointEqualsAdaptedModel) {
  record_capability(preset_.checkpoint(), "merge");
  const auto adapted = load(make_lora_mode());
  const TemporaryFolder folder;
  models::save_adapter(*adapted, preset_.checkpoint(), folder.path());
  models::merge_adapter(folder.path(), folder.path() / "merged");
  const at::Tensor expected = compute_logits(*adapted);
  const auto merged_model = models::load_model(folder.path() / "merged", at::kCPU, at::kFloat);
  const auto adapter_model = models::load_model(folder.path(), at::kCPU, at::kFloat);
  deviations_.expect_at_most(1e-5, relative_difference(compute_logits(*merged_model), expected), "logits, merged",
                             GetParam());
  EXPECT_TRUE(at::equal(compute_logits(*adapter_model), expected));
  EXPECT_GT(relative_difference(compute_logits(*model_), expected), 1e-3) << "the adapter does nothing";
}

TEST_P(FamilyCapabilities, EachImageChangesTheLoss) {
  if (!preset_.takes_media()) GTEST_SKIP() << "the family has no vision tower";
  record_capability(preset_.checkpoint(), "several images");
  const io::Record& original = record("several");
  ASSERT_EQ(original.images.size(), 2U);
  io::Record swapped = original, first_repeated = original, second_repeated = original;
  std::swap(swapped.images[0], swapped.images[1]);
  first_repeated.images[1] = original.images[0];
  second_repeated.images[0] = original.images[1];
  std::set<double> losses;
  for (const auto& variant : {original, swapped, first_repeated, second_repeated}) losses.insert(compute_loss(variant));
  EXPECT_EQ(losses.size(), 4U);
}

TEST_P(FamilyCapabilities, FrameOrderChangesTheLoss) {
  if (preset_.family().compute_video_sample_shape == nullptr) GTEST_SKIP() << "the family supports no videos";
  record_capability(preset_.checkpoint(), "video");
  io::Record reversed = record("video");
  ASSERT_EQ(reversed.videos.size(), 1U);
  reversed.videos = {preset_.get_reversed_video()};
  EXPECT_NE(compute_loss(record("video")), compute_loss(reversed));
}

TEST_P(FamilyCapabilities, BatchedAnswersEqualSingleAnswers) {
  record_capability(preset_.checkpoint(), "generate");
  std::vector<data::Sample> prompts;
  for (const auto& record : records_) prompts.push_back(processor_->process_prompt(record, std::ssize(prompts)));
  engine::GenerationSettings settings{.max_new_tokens = 24};
  const auto answers = engine::generate(*model_, prompts, settings);
  settings.use_cache = false;
  EXPECT_EQ(engine::generate(*model_, prompts, settings), answers);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(answers[i].size(), 24U);
    EXPECT_EQ(engine::generate(*model_, {prompts[i]}, {.max_new_tokens = 24}).front(), answers[i]) << records_[i].id;
  }
  EXPECT_GT(std::set(answers.begin(), answers.end()).size(), 1U) << "all answers are equal";
}

/// Users of other trainers reported "a loss that changes with accumulation".
TEST_P(FamilyCapabilities, AccumulationKeepsLossAndGradients) {
  record_capability(preset_.checkpoint(), "packs");
  const auto full_batch_model = load();
  const auto expected =
      engine::accumulate_gradients(*full_batch_model, samples_, {.micro_batch_size = std::ssize(samples_)});
  const auto count = std::ssize(samples_);
  for (const std::vector<int64_t>& micro_batches :
       {std::vector<int64_t>(samples_.size(), 1), {1, count - 1}, {count - 2, 2}}) {
    const auto split_model = load();
    const auto actual = engine::accumulate_gradients(*split_model, samples_, {.micro_batches = micro_batches});
    deviations_.expect_at_most(1e-6, relative_difference(actual.loss, expected.loss), "loss of another cut",
                               GetParam());
    for (size_t i = 0; i < split_model->parameters().all().size(); ++i) {
      const auto& parameter = split_model->parameters().all()[i];
      const at::Tensor gradient = parameter.tensor.grad(),
                       expected_gradient = full_batch_model->parameters().all()[i].tensor.grad();
      ASSERT_EQ(gradient.defined(), expected_gradient.defined()) << parameter.name;
      if (!gradient.defined() || has_zero_true_gradient(parameter.name)) continue;
      deviations_.expect_at_most(5e-5,
                                 relative_difference(drop_key_bias(parameter.name, gradient),
                                                     drop_key_bias(parameter.name, expected_gradient)),
                                 "gradient of another cut", parameter.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, FamilyCapabilities, testing::ValuesIn(TinyPreset::names()),
                         [](const auto& instance) { return TinyPreset::make_test_name(instance.param); });

/// A tiny preset adds its family to all tests above.
TEST(TinyPresets, CoverAllFamilies) {
  std::set<std::string> families;
  for (const auto& name : TinyPreset::names()) families.insert(get_family_name(TinyPreset(name).checkpoint()));
  EXPECT_THAT(models::list_family_names(), testing::UnorderedElementsAreArray(families))
      << "a family without a folder configs/models/…-tiny is in none of these tests";
  for (const auto& family : models::list_family_names()) RecordProperty("family " + family, "known");
}

}  // namespace
}  // namespace vlmtrain::parity

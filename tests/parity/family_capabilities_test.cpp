#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/small_step.h"
#include "parity/deviations.h"
#include "parity/evidence.h"
#include "parity/exact_values.h"
#include "parity/tiny_preset.h"
#include "parity/unlike_samples.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/engine/generate.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using nn::Quantization;

/// How a model is trained; by default all of its weights.
struct Way {
  std::optional<nn::LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;
};

/// What each family can do, on a small model of it with random weights: as much as can be told without a reference.
/// Each test is a column of the table in docs/models.md.
class FamilyCapabilities : public testing::TestWithParam<std::string> {
 protected:
  static Way with_lora(Quantization quantization = Quantization::kNone) {
    return {nn::LoraSettings{.rank = 4}, quantization};
  }

  void TearDown() override { deviations_.report(); }

  /// Adapters are such that the model is another one than its base: B is not zero.
  std::unique_ptr<models::VisionLanguageModel> load(const Way& way = {}, at::ScalarType dtype = at::kFloat) const {
    auto model = models::build_model(preset_.checkpoint(), at::kCPU, dtype, way.lora, way.quantization);
    models::load_weights(*model, preset_.checkpoint());
    if (!way.lora) return model;
    models::initialize_adapter(*model, /*seed=*/5);
    const at::NoGradGuard no_gradients;
    for (const auto& parameter : model->parameters().all()) {
      if (parameter.name.ends_with("lora_B.weight")) parameter.tensor.copy_(waves_like(parameter.tensor) * 0.05);
    }
    return model;
  }

  /// Values between -1 and 1 that are none of a model's own.
  static at::Tensor waves_like(const at::Tensor& tensor) {
    return at::sin(at::arange(tensor.numel(), at::kDouble) * 1.3 + 0.4).view(tensor.sizes());
  }

  at::Tensor logits_of(const models::VisionLanguageModel& model) const {
    const at::NoGradGuard no_gradients;
    const auto batch = data::collate(samples_);
    return at::mm(model.forward(batch, {.positions = batch.label_positions}).hidden, model.output_weight().t());
  }

  double loss_of(const models::VisionLanguageModel& model) const {
    return at::cross_entropy_loss(logits_of(model), data::collate(samples_).labels).item<double>();
  }
  double loss_of(const io::Record& record) const {
    const std::vector<data::Sample> one{data::make_sample(*processor_, record, 0)};
    const at::NoGradGuard no_gradients;
    const auto batch = data::collate(one);
    const auto hidden = model_->forward(batch, {.positions = batch.label_positions}).hidden;
    return at::cross_entropy_loss(at::mm(hidden, model_->output_weight().t()), batch.labels).item<double>();
  }

  /// What there is to train of each part. Adapters are those of Linears, of which a projector may have none (Gemma 3).
  static std::set<nn::Component> parts_to_reach(const models::VisionLanguageModel& model) {
    std::set<nn::Component> parts{nn::Component::kVisionTower, nn::Component::kLanguageModel};
    const auto& linears = model.parameters().linears();
    const bool has_linear =
        std::ranges::find(linears, nn::Component::kProjector, &nn::LinearPlace::component) != linears.end();
    if (has_linear || !model.parameters().lora()) parts.insert(nn::Component::kProjector);
    return parts;
  }

  /// The way in which training goes, fp32, one sample at a time and every block recomputed, against the exact gradient.
  void expect_exact_gradients(const Way& way) {
    const auto model = load(way);
    model->set_recompute({model->vision_blocks(), model->language_blocks()});
    const auto result = engine::accumulate_gradients(*model, samples_, {.micro_batch_size = 1});
    const ExactValues exact(*load(way, at::kDouble), samples_);
    deviations_.expect_at_most(1e-6, relative_difference(result.loss, exact.loss()), "loss", GetParam());
    std::set<nn::Component> reached;
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      reached.insert(parameter.component);
      if (has_zero_true_gradient(parameter.name)) continue;
      deviations_.expect_at_most(
          5e-5,
          relative_difference(with_true_gradient(parameter.name, gradient),
                              with_true_gradient(parameter.name, exact.gradient(parameter.name))),
          "gradient from float64", parameter.name);
    }
    EXPECT_THAT(reached, testing::IsSupersetOf(parts_to_reach(*model)));
  }

  /// The exact gradient is the loss's: along a line through all that is trained, the loss rises as it says.
  void expect_gradient_is_slope(const Way& way) {
    const auto model = load(way, at::kDouble);
    const ExactValues exact(*model, samples_);
    constexpr double kStep = 1e-5;
    double slope = 0;
    const auto move = [&](double by) {
      const at::NoGradGuard no_gradients;
      for (const auto& parameter : model->parameters().all()) {
        if (parameter.tensor.grad().defined()) parameter.tensor.add_(waves_like(parameter.tensor), by);
      }
    };
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (gradient.defined()) slope += (gradient * waves_like(gradient)).sum().item<double>();
    }
    move(kStep);
    const double above = loss_of(*model);
    move(-2 * kStep);
    const double below = loss_of(*model);
    const double measured = (above - below) / (2 * kStep);
    deviations_.expect_at_most(1e-5, std::abs(measured / slope - 1), "slope of the loss", GetParam());
  }

  /// Steps make the loss smaller, and move what is trained alone.
  void expect_learning(const Way& way) {
    const auto model = load(way), start = load(way);
    engine::Training training(*model, {});
    double first = 0, last = 0;
    for (int step = 0; step < 8; ++step) {
      last =
          engine::optimizer_step(training, samples_, {2e-3, 2e-3, 2e-3}, {.micro_batch_size = 2}).loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.9 * first);
    int64_t moved = 0;
    for (size_t i = 0; i < model->parameters().all().size(); ++i) {
      const auto& parameter = model->parameters().all()[i];
      const bool is_same = at::equal(parameter.values(), start->parameters().all()[i].values());
      moved += is_same ? 0 : 1;
      if (!is_same) {
        EXPECT_EQ(parameter.is_adapter, way.lora.has_value()) << parameter.name;
      }
    }
    EXPECT_GT(moved, 0);
  }

  void expect_training(const Way& way) {
    expect_exact_gradients(way);
    expect_gradient_is_slope(way);
    expect_learning(way);
  }

  const io::Record& record(const std::string& id) const { return *std::ranges::find(records_, id, &io::Record::id); }

  const TinyPreset preset_{GetParam()};
  const std::unique_ptr<models::Processor> processor_ = models::load_processor(preset_.checkpoint(), {});
  const std::vector<io::Record> records_ = preset_.records();
  const std::vector<data::Sample> samples_ = unlike_samples(*processor_, records_);
  const std::unique_ptr<models::VisionLanguageModel> model_ = load();
  Deviations deviations_;
};

TEST_P(FamilyCapabilities, AllWeightsAreTrained) {
  shows(preset_.checkpoint(), "full");
  expect_training({});
}

TEST_P(FamilyCapabilities, AdaptersAreTrained) {
  shows(preset_.checkpoint(), "LoRA");
  expect_training(with_lora());
}

TEST_P(FamilyCapabilities, AdaptersAreTrainedOnAQuantizedBase) {
  shows(preset_.checkpoint(), "NF4");
  expect_training(with_lora(Quantization::kNf4));
}

/// Users of other trainers have had adapters that did nothing where they were used, and merged checkpoints without
/// them.
TEST_P(FamilyCapabilities, AMergedCheckpointIsTheAdaptedModel) {
  shows(preset_.checkpoint(), "merge");
  const auto adapted = load(with_lora());
  const TemporaryFolder folder;
  models::save_adapter(*adapted, preset_.checkpoint(), folder.path());
  models::merge_adapter(folder.path(), folder.path() / "merged");
  const at::Tensor wanted = logits_of(*adapted);
  const auto merged = models::load_model(folder.path() / "merged", at::kCPU, at::kFloat);
  const auto with_adapter = models::load_model(folder.path(), at::kCPU, at::kFloat);
  deviations_.expect_at_most(1e-5, relative_difference(logits_of(*merged), wanted), "logits, merged", GetParam());
  EXPECT_TRUE(at::equal(logits_of(*with_adapter), wanted));
  EXPECT_GT(relative_difference(logits_of(*model_), wanted), 1e-3) << "the adapter does nothing";
}

TEST_P(FamilyCapabilities, EachOfSeveralPicturesIsSeen) {
  shows(preset_.checkpoint(), "several pictures");
  const io::Record& both = record("several");
  ASSERT_EQ(both.images.size(), 2U);
  io::Record turned = both, first_twice = both, second_twice = both;
  std::swap(turned.images[0], turned.images[1]);
  first_twice.images[1] = both.images[0];
  second_twice.images[0] = both.images[1];
  std::set<double> losses;
  for (const auto& one : {both, turned, first_twice, second_twice}) losses.insert(loss_of(one));
  EXPECT_EQ(losses.size(), 4U);
}

TEST_P(FamilyCapabilities, AVideoIsSeenInItsOrder) {
  if (preset_.family().video_shape == nullptr) GTEST_SKIP() << "the family takes no videos";
  shows(preset_.checkpoint(), "video");
  io::Record backwards = record("video");
  ASSERT_EQ(backwards.videos.size(), 1U);
  backwards.videos = {preset_.video_backwards()};
  EXPECT_NE(loss_of(record("video")), loss_of(backwards));
}

TEST_P(FamilyCapabilities, AnswersAreThoseOfEachPromptAloneAndWithoutACache) {
  shows(preset_.checkpoint(), "generate");
  std::vector<data::Sample> prompts;
  for (const auto& one : records_) prompts.push_back(processor_->process_prompt(one, std::ssize(prompts)));
  engine::GenerateSettings settings{.max_new_tokens = 24};
  const auto answers = engine::generate(*model_, prompts, settings);
  settings.use_cache = false;
  EXPECT_EQ(engine::generate(*model_, prompts, settings), answers);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(answers[i].size(), 24U);
    EXPECT_EQ(engine::generate(*model_, {prompts[i]}, {.max_new_tokens = 24}).front(), answers[i]) << records_[i].id;
  }
  EXPECT_GT(std::set(answers.begin(), answers.end()).size(), 1U) << "all answers are alike";
}

/// "A loss that changes with accumulation" is what users of other trainers report.
TEST_P(FamilyCapabilities, AccumulationChangesNeitherLossNorGradients) {
  shows(preset_.checkpoint(), "packs");
  const auto whole = load();
  const auto wanted = engine::accumulate_gradients(*whole, samples_, {.micro_batch_size = std::ssize(samples_)});
  const auto count = std::ssize(samples_);
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>(samples_.size(), 1), {1, count - 1}, {count - 2, 2}}) {
    const auto parts = load();
    const auto found = engine::accumulate_gradients(*parts, samples_, {.micro_batches = cut});
    deviations_.expect_at_most(1e-6, relative_difference(found.loss, wanted.loss), "loss of another cut", GetParam());
    for (size_t i = 0; i < parts->parameters().all().size(); ++i) {
      const auto& parameter = parts->parameters().all()[i];
      const at::Tensor gradient = parameter.tensor.grad(), other = whole->parameters().all()[i].tensor.grad();
      ASSERT_EQ(gradient.defined(), other.defined()) << parameter.name;
      if (!gradient.defined() || has_zero_true_gradient(parameter.name)) continue;
      deviations_.expect_at_most(
          5e-5,
          relative_difference(with_true_gradient(parameter.name, gradient), with_true_gradient(parameter.name, other)),
          "gradient of another cut", parameter.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, FamilyCapabilities, testing::ValuesIn(TinyPreset::names()),
                         [](const auto& instance) { return TinyPreset::test_name(instance.param); });

/// A new family is in all tests above as soon as it has a tiny preset.
TEST(TinyPresets, EachFamilyHasOne) {
  std::set<std::string> families;
  for (const auto& name : TinyPreset::names()) families.insert(family_of(TinyPreset(name).checkpoint()));
  EXPECT_THAT(models::names_of_families(), testing::UnorderedElementsAreArray(families))
      << "a family without a folder configs/models/…-tiny is in none of these tests";
  for (const auto& family : models::names_of_families()) RecordProperty("family " + family, "known");
}

}  // namespace
}  // namespace vlmtrain::parity

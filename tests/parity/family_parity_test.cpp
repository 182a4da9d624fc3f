#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "engine/small_step.h"
#include "models/network/layers.h"
#include "models/processing/preprocessor_config.h"
#include "parity/capability_record.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/exact_values.h"
#include "parity/logits.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::parity {
namespace {

std::vector<int64_t> to_vector(const at::Tensor& ids) {
  const at::Tensor long_ids = ids.to(at::kLong).contiguous();
  return {long_ids.const_data_ptr<int64_t>(), long_ids.const_data_ptr<int64_t>() + long_ids.numel()};
}

image::Normalization get_normalization(const Case& reference) {
  using ChannelValues = std::array<double, 3>;
  const auto config = models::PreprocessorConfig::find_for_images(reference.checkpoint());
  if (config) return config->get_normalization({}, {});
  const auto description = reference.description();
  return {description.at("image_mean").get<ChannelValues>(), description.at("image_std").get<ChannelValues>(),
          1.0 / 255.0};
}

/// Returns the first turn, the only one that the reference answers.
io::Record truncate_to_first_question(io::Record record) {
  record.turns.resize(1);
  size_t images = 0;
  const std::string& text = record.turns.front().text;
  for (auto position = text.find(io::kImagePlaceholder); position != std::string::npos;
       position = text.find(io::kImagePlaceholder, position + 1))
    ++images;
  record.images.resize(images);
  return record;
}

class FamilyParity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { record_capability(case_.checkpoint(), "parity"); }
  void TearDown() override { deviations_.report(); }

  engine::SmallStep make_full_batch() const { return {.micro_batch_size = std::ssize(samples_)}; }

  void check_gradients(models::VisionLanguageModel& model, const engine::SmallStep& settings) {
    const auto result = engine::accumulate_gradients(model, samples_, settings);
    const ExactValues exact(*case_.load_model(at::kDouble), samples_);
    expect_close_to_exact(deviations_, result.loss, expected_.tensor("loss"), exact.loss(), "loss", GetParam());

    double largest_gradient = 0;
    for (const auto& parameter : model.parameters().all()) {
      if (!parameter.tensor.grad().defined()) continue;
      largest_gradient = std::max(largest_gradient, parameter.tensor.grad().abs().max().item<double>());
    }
    for (const auto& parameter : model.parameters().all()) {
      const auto& name = parameter.name;
      const auto& tensor = parameter.tensor;
      ASSERT_EQ(tensor.grad().defined(), expected_.contains("gradient." + name)) << name;
      if (!tensor.grad().defined()) continue;
      const StoredTensor expected = expected_.stored("gradient." + name);
      if (has_zero_true_gradient(name)) {
        const double relative_noise = tensor.grad().abs().max().item<double>() / largest_gradient;
        deviations_.expect_at_most(1e-6, relative_noise, "gradient that is zero, of the largest", name);
        continue;
      }
      expect_close_to_exact(deviations_, tensor.grad(), expected, exact.gradient(name), "gradient", name);
    }
  }

  const Case case_{GetParam()};
  const ReferenceFile expected_ = case_.expected();
  const std::vector<data::Sample> samples_ = case_.samples();
  Deviations deviations_;
};

TEST_P(FamilyParity, TokensAndLabelsAreEqual) {
  const auto description = case_.description();
  ASSERT_EQ(samples_.size(), description.at("samples").size());
  for (size_t i = 0; i < samples_.size(); ++i) {
    const auto prefix = fmt::format("sample.{}.", i);
    EXPECT_EQ(samples_[i].token_ids, to_vector(expected_.tensor(prefix + "input_ids"))) << i;
    const std::vector<int64_t> mask(samples_[i].label_mask.begin(), samples_[i].label_mask.end());
    EXPECT_EQ(mask, to_vector(expected_.tensor(prefix + "label_mask"))) << i;
    EXPECT_EQ(samples_[i].id, description["samples"][i].at("id"));
    EXPECT_EQ(samples_[i].num_media(), std::ssize(description["samples"][i].at("grids")));
  }
}

TEST_P(FamilyParity, PositionsAreEqual) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    const auto name = fmt::format("sample.{}.position_ids", i);
    // transformers counts from 0 for one position per token.
    const at::Tensor expected =
        expected_.contains(name) ? expected_.tensor(name) : at::arange(samples_[i].tokens(), at::kLong);
    const auto actual = data::collate(std::span(&samples_[i], 1)).position_ids;
    EXPECT_TRUE(at::equal(actual.expand_as(expected), expected)) << samples_[i].id;
  }
}

TEST_P(FamilyParity, PixelValuesAreBitwiseEqual) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    const auto name = fmt::format("sample.{}.pixel_values", i);
    ASSERT_EQ(samples_[i].pixel_values.defined(), expected_.contains(name)) << i;
    if (!samples_[i].pixel_values.defined()) continue;
    const at::Tensor pixels =
        models::normalize_images({samples_[i].pixel_values, get_normalization(case_)}, at::kFloat);
    EXPECT_TRUE(at::equal(pixels, expected_.tensor(name))) << i;
  }
}

TEST_P(FamilyParity, LogitsOfThePackedBatch) {
  const ExactValues exact(*case_.load_model(at::kDouble), samples_);
  const at::NoGradGuard no_gradients;
  const auto model = case_.load_model();
  const auto batch = data::collate(samples_);
  const at::Tensor logits =
      compute_logits(*model, model->forward(batch, {.positions = batch.label_positions}).hidden_states);
  int64_t first = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const StoredTensor expected = expected_.stored(fmt::format("sample.{}.logits", i));
    const at::Tensor actual = logits.narrow(0, first, samples_[i].label_tokens());
    const at::Tensor exact_logits = exact.logits().narrow(0, first, samples_[i].label_tokens());
    expect_close_to_exact(deviations_, actual, expected, exact_logits, "logits", samples_[i].id);
    first += samples_[i].label_tokens();
  }
}

TEST_P(FamilyParity, LossAndGradients) {
  check_gradients(*case_.load_model(), make_full_batch());
}

TEST_P(FamilyParity, LossAndGradientsWithEveryBlockRecomputed) {
  for (const bool is_selective : {false, true}) {
    const auto model = case_.load_model();
    const int64_t blocks = model->num_language_blocks();
    model->set_recompute_block_counts({model->num_vision_blocks(), blocks, is_selective ? blocks : 0});
    check_gradients(*model, make_full_batch());
  }
}

TEST_P(FamilyParity, LossAndGradientsOfOneSampleAtATime) {
  check_gradients(*case_.load_model(), {.micro_batch_size = 1, .loss_chunk_rows = 7});
}

TEST_P(FamilyParity, FiveStepsOfAdamW) {
  const auto description = case_.description();
  const auto model = case_.load_model();
  const auto exact_model = case_.load_model(at::kDouble);
  const engine::OptimizerSettings settings = {.adamw = {.beta1 = description.at("adam_betas").at(0),
                                                        .beta2 = description.at("adam_betas").at(1),
                                                        .epsilon = description.at("adam_epsilon")},
                                              .weight_decay = description.at("weight_decay"),
                                              .max_grad_norm = description.at("max_grad_norm")};
  const double rate = description.at("learning_rate");
  expect_same_steps(deviations_, *model, *exact_model, settings, rate, samples_, expected_, "gradient.", GetParam());

  // AdamW divides a gradient by its own magnitude. A gradient that is only rounding error moves its
  // weight by up to the learning rate, in transformers as well (data/README.md). Gradients in
  // float32 differ by about 3e-6 of their tensor's largest element, so after five steps at rate
  // 1e-3 an element is accurate to 1e-5 if its first gradient exceeds 1e-3 of the largest. Other
  // elements that differ by more are counted. Their number is limited to that of transformers in
  // float32 against float64.
  constexpr double kCertainGradient = 1e-3;
  const double largest_drift = rate;
  int64_t num_outliers = 0, num_exact_outliers = 0, num_reference_outliers = 0;
  const auto initial_model = case_.load_model();
  const auto frozen_names = description.at("parameters_without_gradient").get<std::set<std::string>>();
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const auto& name = model->parameters().all()[i].name;
    const auto& tensor = model->parameters().all()[i].tensor;
    const bool is_trainable = nn::is_trainable(model->parameters().all()[i].component);
    if (!is_trainable || frozen_names.contains(name)) {
      EXPECT_TRUE(at::equal(tensor.detach(), initial_model->parameters().all()[i].tensor.detach()))
          << name << " has moved";
      continue;
    }
    if (has_zero_true_gradient(name)) continue;
    const StoredTensor stored = expected_.stored("parameter." + name);
    const at::Tensor actual = drop_key_bias(name, stored.select_stored(tensor.detach()));
    const at::Tensor expected = drop_key_bias(name, stored.values());
    const at::Tensor difference = (actual - expected).abs();
    // A text model's key bias has a gradient only because of rotation. The slow pairs rotate so
    // little that their gradient is smaller than the rounding error of the other sums.
    const bool is_key_bias = name.ends_with("k_proj.bias");
    const bool is_sampled = stored.values().numel() < tensor.numel();
    // In a stored part, an outlier weighs 13 times as much. It is counted below.
    const at::Tensor clamped_difference = is_sampled ? difference.clamp_max(1e-5) : difference;
    deviations_.expect_at_most(is_key_bias ? 1e-5 : 1e-6, clamped_difference.mean().item<double>(),
                               is_key_bias ? "key bias, mean difference" : "weight, mean difference", name);
    deviations_.expect_at_most(largest_drift, difference.max().item<double>(), "weight, any element", name);
    num_outliers += (difference > 1e-5).sum().item<int64_t>();
    const at::Tensor exact = exact_model->parameters().all()[i].tensor.detach();
    const at::Tensor exact_values = drop_key_bias(name, stored.select_stored(exact));
    num_reference_outliers += ((expected - exact_values).abs() > 1e-5).sum().item<int64_t>();
    if (is_sampled) {
      // Elements that are not stored: the reference's as a whole, the actual ones against the same
      // steps in float64.
      deviations_.expect_at_most(largest_drift, stored.estimate_difference_norm(tensor), "weight, norm of difference",
                                 name);
      const at::Tensor exact_difference = (tensor.detach() - exact).abs();
      deviations_.expect_at_most(1e-6, exact_difference.mean().item<double>(), "weight, mean difference from float64",
                                 name);
      deviations_.expect_at_most(largest_drift, exact_difference.max().item<double>(),
                                 "weight, any element's difference from float64", name);
      num_exact_outliers += (exact_difference > 1e-5).sum().item<int64_t>();
    }

    const at::Tensor gradient_size = drop_key_bias(name, expected_.stored("gradient." + name).values()).abs();
    const at::Tensor is_certain =
        (gradient_size > kCertainGradient * gradient_size.max()).logical_or_(gradient_size == 0);
    EXPECT_GE(3 * is_certain.sum().item<int64_t>(), is_certain.numel())
        << name << ": fewer than a third of the elements are compared one by one";
    const at::Tensor certain_difference = difference.masked_select(is_certain);
    deviations_.expect_at_most(1e-5, certain_difference.max().item<double>(), "weight, element with a certain gradient",
                               name);
    deviations_.expect_at_most(
        1e-5, relative_difference(actual.masked_select(is_certain), expected.masked_select(is_certain)),
        "weight, relative", name);
  }
  deviations_.expect_at_most(kMaxReferenceRatio * std::max(1.0, static_cast<double>(num_reference_outliers)),
                             static_cast<double>(num_outliers), "elements that differ by more than 1e-5", GetParam());
  deviations_.expect_at_most(kMaxReferenceRatio * std::max(1.0, static_cast<double>(num_reference_outliers)),
                             static_cast<double>(num_exact_outliers),
                             "elements that differ by more than 1e-5 from float64", GetParam());
}

TEST_P(FamilyParity, SavedCheckpointIsTheSame) {
  const auto model = case_.load_model();
  const TemporaryFolder saved_folder;
  models::save_checkpoint(*model, case_.checkpoint(), saved_folder.path(), /*max_shard_bytes=*/50'000);
  EXPECT_TRUE(std::filesystem::exists(saved_folder.path() / "model.safetensors.index.json"));

  const auto loaded = models::build_model(saved_folder.path(), at::kCPU, at::kFloat);
  models::load_weights(*loaded, saved_folder.path());
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const auto& parameter = model->parameters().all()[i];
    EXPECT_TRUE(at::equal(loaded->parameters().all()[i].tensor, parameter.tensor)) << parameter.name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(case_.checkpoint())) {
    const auto name = entry.path().filename();
    if (name.string().starts_with("model")) continue;
    ASSERT_TRUE(std::filesystem::exists(saved_folder.path() / name)) << name;
    if (name == "config.json") {
      auto expected = io::read_json(entry.path());
      auto actual = io::read_json(saved_folder.path() / name);
      if (!expected.contains("vision_config")) actual.erase("vision_config");  // an external tower
      EXPECT_EQ(actual, expected);
    } else {
      EXPECT_EQ(io::read_file(saved_folder.path() / name), io::read_file(entry.path())) << name;
    }
  }
}

TEST_P(FamilyParity, GreedyAnswerIsEqual) {
  const auto description = case_.description();
  if (description.at("generate").is_null()) GTEST_SKIP() << "the case has no answer";
  const auto records = case_.records();
  const auto record = std::ranges::find(records, description.at("generate").get<std::string>(), &io::Record::id);
  ASSERT_NE(record, records.end());
  const auto processor = case_.load_processor();
  const auto prompt = processor->process_prompt(truncate_to_first_question(*record), record - records.begin());
  EXPECT_EQ(prompt.token_ids, to_vector(expected_.tensor("generation.prompt_ids")));
  const auto expected = to_vector(expected_.tensor("generation.new_ids"));
  const auto answers =
      engine::generate(*case_.load_model(), {prompt},
                       {.max_new_tokens = std::ssize(expected), .eos_token_ids = {processor->end_of_turn_id()}});
  EXPECT_EQ(answers.at(0), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, FamilyParity, testing::ValuesIn(case_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/small_step.h"
#include "parity/capability_record.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/exact_values.h"
#include "parity/logits.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

constexpr const char* kPrefix = "base_model.model.";

/// Adapter saved by peft for the checkpoint of a Case, with peft's results.
class LoraCase {
 public:
  explicit LoraCase(const std::string& name)
      : folder_(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/lora" / name) {}

  std::filesystem::path adapter() const { return folder_ / "adapter"; }
  nlohmann::json description() const { return io::read_json(folder_ / "case.json"); }
  ReferenceFile expected() const { return ReferenceFile(folder_ / "expected.safetensors"); }
  Case base() const { return Case(description().at("base")); }

  /// Returns the settings as a configuration would give them.
  nn::LoraSettings settings() const {
    const auto json = description();
    return {.rank = json.at("rank"),
            .alpha = json.at("alpha"),
            .use_rslora = json.at("use_rslora"),
            .use_dora = json.at("use_dora"),
            .target_modules = json.at("target_modules"),
            .modules_to_save = json.value("modules_to_save", std::vector<std::string>())};
  }

  std::unique_ptr<models::VisionLanguageModel> build(const nn::LoraSettings& settings,
                                                     at::ScalarType dtype = at::kFloat) const {
    auto model = models::build_model(base().checkpoint(), at::kCPU, dtype, settings);
    models::load_weights(*model, base().checkpoint());
    return model;
  }

  std::unique_ptr<models::VisionLanguageModel> load(at::ScalarType dtype = at::kFloat) const {
    auto model = build(models::read_adapter_settings(adapter()), dtype);
    models::load_adapter(*model, adapter());
    return model;
  }

 private:
  std::filesystem::path folder_;
};

bool is_saved_with_adapter(const nn::Parameter& parameter) {
  return parameter.is_saved_with_adapter();
}

/// Returns false for modules that never run; PEFT adapts them, too.
bool is_trained(const nn::Parameter& parameter) {
  return parameter.is_saved_with_adapter() && parameter.component != nn::Component::kUnused;
}

std::set<std::string> list_adapter_names(const models::VisionLanguageModel& model,
                                         bool (*is_counted)(const nn::Parameter&)) {
  std::set<std::string> names;
  for (const auto& parameter : model.parameters().all()) {
    if (is_counted(parameter)) names.insert(kPrefix + parameter.name);
  }
  return names;
}

class LoraParity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { record_capability(case_.base().checkpoint(), "LoRA"); }
  void TearDown() override { deviations_.report(); }

  engine::SmallStep make_full_batch() const { return {.micro_batch_size = std::ssize(samples_)}; }

  void check_gradients(models::VisionLanguageModel& model, const engine::SmallStep& settings) {
    const auto result = engine::accumulate_gradients(model, samples_, settings);
    const ExactValues exact(*case_.load(at::kDouble), samples_);
    expect_close_to_exact(deviations_, result.loss, expected_.tensor("loss"), exact.loss(), "loss", GetParam());
    for (const auto& parameter : model.parameters().all()) {
      const std::string name = "gradient." + (kPrefix + parameter.name);
      const at::Tensor gradient = parameter.tensor.grad();
      ASSERT_EQ(gradient.defined(), expected_.contains(name)) << name;
      if (!gradient.defined()) continue;
      const StoredTensor expected = expected_.stored(name);
      expect_close_to_exact(deviations_, gradient, expected, exact.gradient(parameter.name), "gradient", name);
    }
  }

  const LoraCase case_{GetParam()};
  const ReferenceFile expected_ = case_.expected();
  const std::vector<data::Sample> samples_ = case_.base().samples();
  Deviations deviations_;
};

TEST_P(LoraParity, TargetsMatchPeft) {
  const auto saved_names = io::SafetensorsFile(case_.adapter() / "adapter_model.safetensors").names();
  EXPECT_EQ(list_adapter_names(*case_.load(), is_saved_with_adapter),
            (std::set<std::string>{saved_names.begin(), saved_names.end()}));
  EXPECT_EQ(list_adapter_names(*case_.build(case_.settings()), is_saved_with_adapter),
            list_adapter_names(*case_.load(), is_trained));
}

TEST_P(LoraParity, Logits) {
  const ExactValues exact(*case_.load(at::kDouble), samples_);
  const at::NoGradGuard no_gradients;
  const auto model = case_.load();
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

TEST_P(LoraParity, LossAndGradients) {
  check_gradients(*case_.load(), make_full_batch());
}

TEST_P(LoraParity, LossAndGradientsWithEveryBlockRecomputed) {
  const auto model = case_.load();
  model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
  check_gradients(*model, {.micro_batch_size = 1});
}

TEST_P(LoraParity, FiveStepsOfAdamW) {
  const auto description = case_.description();
  const auto model = case_.load();
  const auto exact_model = case_.load(at::kDouble);
  const engine::OptimizerSettings settings = {.adamw = {.beta1 = description.at("adam_betas").at(0),
                                                        .beta2 = description.at("adam_betas").at(1),
                                                        .epsilon = description.at("adam_epsilon")},
                                              .weight_decay = description.at("weight_decay"),
                                              .max_grad_norm = description.at("max_grad_norm")};
  const double rate = description.at("learning_rate");
  expect_same_steps(deviations_, *model, *exact_model, settings, rate, samples_, expected_,
                    std::string("gradient.") + kPrefix, GetParam());

  const auto initial_model = case_.load();
  int64_t num_outliers = 0, num_exact_outliers = 0, num_reference_outliers = 0;
  const auto frozen_names = description.at("parameters_without_gradient").get<std::set<std::string>>();
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const auto& parameter = model->parameters().all()[i];
    const std::string name = kPrefix + parameter.name;
    const at::Tensor values = parameter.tensor.detach();
    if (!is_trained(parameter) || frozen_names.contains(name)) {
      EXPECT_TRUE(at::equal(values, initial_model->parameters().all()[i].tensor.detach())) << name << " has moved";
      continue;
    }
    const StoredTensor stored = expected_.stored("parameter." + name);
    const at::Tensor actual = stored.select_stored(values);
    const at::Tensor& expected = stored.values();
    const at::Tensor difference = (actual - expected).abs();
    const bool is_sampled = expected.numel() < values.numel();
    // In a stored part, an outlier weighs 13 times as much. It is counted below.
    const at::Tensor clamped_difference = is_sampled ? difference.clamp_max(1e-5) : difference;
    deviations_.expect_at_most(1e-6, clamped_difference.mean().item<double>(), "weight, mean difference", name);
    deviations_.expect_at_most(1e-4, difference.max().item<double>(), "weight, any element", name);
    // AdamW makes steps of up to the learning rate for gradients that are only rounding error; see
    // data/README.md. Such elements are counted instead. Elements whose gradient changes its sign
    // during the steps diverge as well: peft in float32 differs from float64 by 8e-6.
    num_outliers += (difference > 1e-5).sum().item<int64_t>();
    const at::Tensor exact = exact_model->parameters().all()[i].tensor.detach();
    num_reference_outliers += ((expected - stored.select_stored(exact)).abs() > 1e-5).sum().item<int64_t>();
    if (is_sampled) {
      // Elements that are not stored: the reference's as a whole, the actual ones against the same
      // steps in float64.
      deviations_.expect_at_most(1e-4, stored.estimate_difference_norm(values), "weight, norm of difference", name);
      const at::Tensor exact_difference = (values - exact).abs();
      deviations_.expect_at_most(1e-6, exact_difference.mean().item<double>(), "weight, mean difference from float64",
                                 name);
      deviations_.expect_at_most(1e-4, exact_difference.max().item<double>(),
                                 "weight, any element's difference from float64", name);
      num_exact_outliers += (exact_difference > 1e-5).sum().item<int64_t>();
    }
    const at::Tensor gradient_size = expected_.stored("gradient." + name).values().abs();
    const at::Tensor is_certain = gradient_size > 1e-5 * gradient_size.max();
    deviations_.expect_at_most(
        2e-5, relative_difference(actual.masked_select(is_certain), expected.masked_select(is_certain)),
        "weight, elements with a certain gradient", name);
  }
  deviations_.expect_at_most(kMaxReferenceRatio * std::max(1.0, static_cast<double>(num_reference_outliers)),
                             static_cast<double>(num_outliers), "elements that differ by more than 1e-5", GetParam());
  deviations_.expect_at_most(kMaxReferenceRatio * std::max(1.0, static_cast<double>(num_reference_outliers)),
                             static_cast<double>(num_exact_outliers),
                             "elements that differ by more than 1e-5 from float64", GetParam());
}

TEST_P(LoraParity, SavedAdapterIsTheSame) {
  const auto model = case_.load();
  const TemporaryFolder saved_folder;
  models::save_adapter(*model, case_.base().checkpoint(), saved_folder.path());
  EXPECT_TRUE(models::is_adapter(saved_folder.path()));
  const io::SafetensorsFile actual(saved_folder.path() / "adapter_model.safetensors");
  const io::SafetensorsFile expected(case_.adapter() / "adapter_model.safetensors");
  EXPECT_THAT(actual.names(), testing::UnorderedElementsAreArray(expected.names()));
  for (const auto& name : expected.names()) EXPECT_TRUE(at::equal(actual.tensor(name), expected.tensor(name))) << name;

  const auto saved_config = io::read_json(saved_folder.path() / "adapter_config.json");
  const auto reference_config = io::read_json(case_.adapter() / "adapter_config.json");
  for (const char* key : {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "peft_type"}) {
    EXPECT_EQ(saved_config.at(key), reference_config.at(key)) << key;
  }
  EXPECT_EQ(models::find_adapter_base(saved_folder.path()), case_.base().checkpoint());
  EXPECT_TRUE(std::filesystem::exists(saved_folder.path() / "tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(saved_folder.path() / "config.json"));
}

TEST_P(LoraParity, MergedWeightsMatchPeft) {
  const TemporaryFolder folder;
  models::save_adapter(*case_.load(), case_.base().checkpoint(), folder.path());
  models::merge_adapter(folder.path(), folder.path() / "merged");
  const io::CheckpointTensors merged(folder.path() / "merged");
  const io::CheckpointTensors base(case_.base().checkpoint());
  const auto model = case_.load();
  const auto adapted_names = list_adapter_names(*model, is_saved_with_adapter);
  int64_t num_compared = 0;
  for (const auto& parameter : model->parameters().all()) {
    if (parameter.is_adapter) continue;
    const std::string path = parameter.name.substr(0, parameter.name.rfind('.'));
    const at::Tensor actual = merged.tensor(model->get_checkpoint_tensor_name(parameter.name));
    if (expected_.contains("merged." + parameter.name)) {
      ++num_compared;
      deviations_.expect_at_most(1e-6, relative_difference(actual, expected_.tensor("merged." + parameter.name)),
                                 "merged weight", parameter.name);
    } else if (!adapted_names.contains(kPrefix + path + ".lora_A.weight")) {
      EXPECT_TRUE(at::equal(actual, parameter.tensor.detach())) << parameter.name;
    }
  }
  EXPECT_THAT(merged.names(), testing::UnorderedElementsAreArray(base.names()));
  EXPECT_EQ(num_compared, 3);

  // The merged checkpoint equals the adapted model.
  const at::NoGradGuard no_gradients;
  const auto batch = data::collate(samples_);
  const auto merged_model = models::load_model(folder.path() / "merged", at::kCPU, at::kFloat);
  EXPECT_FALSE(merged_model->parameters().lora().has_value());
  const at::Tensor actual = merged_model->forward(batch, {.positions = batch.label_positions}).hidden_states;
  const at::Tensor expected = models::load_model(folder.path(), at::kCPU, at::kFloat)
                                  ->forward(batch, {.positions = batch.label_positions})
                                  .hidden_states;
  deviations_.expect_at_most(1e-5, relative_difference(actual, expected), "hidden states of the merged model",
                             GetParam());
}

TEST_P(LoraParity, NewAdapterChangesNothing) {
  const at::NoGradGuard no_gradients;
  const auto model = case_.build(case_.settings());
  models::initialize_adapter(*model, /*seed=*/3);
  const auto batch = data::collate(samples_);
  const at::Tensor actual = model->forward(batch, {.positions = batch.label_positions}).hidden_states;
  const at::Tensor expected =
      case_.base().load_model()->forward(batch, {.positions = batch.label_positions}).hidden_states;
  deviations_.expect_at_most(case_.settings().use_dora ? 2e-6 : 0, relative_difference(actual, expected),
                             "hidden states with a fresh adapter", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, LoraParity,
                         testing::Values("all_linear", "rank_stabilised_names", "text_tower", "vision_tower",
                                         "text_only", "dora", "dora_rank_stabilised", "llava_all_linear",
                                         "llava_modules_to_save", "qwen_all_linear", "qwen3_all_linear",
                                         "qwen3_5_deltas", "gemma4_all_linear", "gemma4_per_layer_linears"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

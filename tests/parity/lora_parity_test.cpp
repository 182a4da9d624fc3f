#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/small_step.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/evidence.h"
#include "parity/exact_values.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

constexpr const char* kPrefix = "base_model.model.";

/// An adapter that peft saved, for the checkpoint of a Case, and what peft computes with it.
class LoraCase {
 public:
  explicit LoraCase(const std::string& name)
      : folder_(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/lora" / name) {}

  std::filesystem::path adapter() const { return folder_ / "adapter"; }
  nlohmann::json description() const { return io::read_json(folder_ / "case.json"); }
  ReferenceFile expected() const { return ReferenceFile(folder_ / "expected.safetensors"); }
  Case base() const { return Case(description().at("base")); }

  /// As a configuration would ask for them.
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

bool goes_with_adapter(const nn::Parameter& parameter) {
  return parameter.goes_with_adapter();
}

/// PEFT adapts modules that never run as well.
bool is_trained(const nn::Parameter& parameter) {
  return parameter.goes_with_adapter() && parameter.component != nn::Component::kUnused;
}

std::set<std::string> adapter_names(const models::VisionLanguageModel& model, bool (*counts)(const nn::Parameter&)) {
  std::set<std::string> names;
  for (const auto& parameter : model.parameters().all()) {
    if (counts(parameter)) names.insert(kPrefix + parameter.name);
  }
  return names;
}

class LoraParity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { shows(case_.base().checkpoint(), "LoRA"); }
  void TearDown() override { deviations_.report(); }

  engine::SmallStep all_at_once() const { return {.micro_batch_size = std::ssize(samples_)}; }

  void check_gradients(models::VisionLanguageModel& model, const engine::SmallStep& settings) {
    const auto result = engine::accumulate_gradients(model, samples_, settings);
    const ExactValues exact(*case_.load(at::kDouble), samples_);
    expect_as_exact(deviations_, result.loss, expected_.tensor("loss"), exact.loss(), "loss", GetParam());
    for (const auto& parameter : model.parameters().all()) {
      const std::string name = "gradient." + (kPrefix + parameter.name);
      const at::Tensor gradient = parameter.tensor.grad();
      ASSERT_EQ(gradient.defined(), expected_.contains(name)) << name;
      if (!gradient.defined()) continue;
      const StoredTensor wanted = expected_.stored(name);
      expect_as_exact(deviations_, gradient, wanted, exact.gradient(parameter.name), "gradient", name);
    }
  }

  const LoraCase case_{GetParam()};
  const ReferenceFile expected_ = case_.expected();
  const std::vector<data::Sample> samples_ = case_.base().samples();
  Deviations deviations_;
};

TEST_P(LoraParity, TargetsAreThoseOfPeft) {
  const auto saved = io::SafetensorsFile(case_.adapter() / "adapter_model.safetensors").names();
  EXPECT_EQ(adapter_names(*case_.load(), goes_with_adapter), (std::set<std::string>{saved.begin(), saved.end()}));
  EXPECT_EQ(adapter_names(*case_.build(case_.settings()), goes_with_adapter), adapter_names(*case_.load(), is_trained));
}

TEST_P(LoraParity, Logits) {
  const ExactValues exact(*case_.load(at::kDouble), samples_);
  const at::NoGradGuard no_gradients;
  const auto model = case_.load();
  const auto batch = data::collate(samples_);
  const at::Tensor logits =
      at::mm(model->forward(batch, {.positions = batch.label_positions}).hidden, model->output_weight().t());
  int64_t first = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const StoredTensor wanted = expected_.stored(fmt::format("sample.{}.logits", i));
    const at::Tensor found = logits.narrow(0, first, samples_[i].label_tokens());
    const at::Tensor truth = exact.logits().narrow(0, first, samples_[i].label_tokens());
    expect_as_exact(deviations_, found, wanted, truth, "logits", samples_[i].id);
    first += samples_[i].label_tokens();
  }
}

TEST_P(LoraParity, LossAndGradients) {
  check_gradients(*case_.load(), all_at_once());
}

TEST_P(LoraParity, LossAndGradientsWithEveryBlockRecomputed) {
  const auto model = case_.load();
  model->set_recompute({model->vision_blocks(), model->language_blocks()});
  check_gradients(*model, {.micro_batch_size = 1});
}

TEST_P(LoraParity, FiveStepsOfAdamW) {
  const auto description = case_.description();
  const auto model = case_.load();
  const auto exact_model = case_.load(at::kDouble);
  const engine::AdamWSettings settings = {.beta1 = description.at("adam_betas").at(0),
                                          .beta2 = description.at("adam_betas").at(1),
                                          .epsilon = description.at("adam_epsilon"),
                                          .weight_decay = description.at("weight_decay"),
                                          .max_grad_norm = description.at("max_grad_norm")};
  const double rate = description.at("learning_rate");
  expect_same_steps(deviations_, *model, *exact_model, settings, rate, samples_, expected_,
                    std::string("gradient.") + kPrefix, GetParam());

  const auto start = case_.load();
  int64_t astray = 0, astray_from_exact = 0, reference_astray = 0;
  const auto unmoved = description.at("parameters_without_gradient").get<std::set<std::string>>();
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const auto& parameter = model->parameters().all()[i];
    const std::string name = kPrefix + parameter.name;
    const at::Tensor whole = parameter.tensor.detach();
    if (!is_trained(parameter) || unmoved.contains(name)) {
      EXPECT_TRUE(at::equal(whole, start->parameters().all()[i].tensor.detach())) << name << " has moved";
      continue;
    }
    const StoredTensor stored = expected_.stored("parameter." + name);
    const at::Tensor found = stored.part_of(whole);
    const at::Tensor& wanted = stored.values();
    const at::Tensor difference = (found - wanted).abs();
    const bool is_part = wanted.numel() < whole.numel();
    // In a part, an element that is astray weighs 13 times as much. It is counted below.
    const at::Tensor averaged = is_part ? difference.clamp_max(1e-5) : difference;
    deviations_.expect_at_most(1e-6, averaged.mean().item<double>(), "weight, mean difference", name);
    deviations_.expect_at_most(1e-4, difference.max().item<double>(), "weight, any element", name);
    // AdamW makes steps of up to the learning rate of a gradient that is nothing but rounding; see data/README.md. Such
    // elements are counted instead. Others whose gradient changes its sign within the steps part as well: peft in
    // float32 is 8e-6 from itself in float64.
    astray += (difference > 1e-5).sum().item<int64_t>();
    const at::Tensor exact = exact_model->parameters().all()[i].tensor.detach();
    reference_astray += ((wanted - stored.part_of(exact)).abs() > 1e-5).sum().item<int64_t>();
    if (is_part) {
      // The elements that are not stored: the reference's as a whole, ours against the same steps in float64.
      deviations_.expect_at_most(1e-4, stored.norm_of_difference(whole), "weight, norm of difference", name);
      const at::Tensor from_exact = (whole - exact).abs();
      deviations_.expect_at_most(1e-6, from_exact.mean().item<double>(), "weight, mean difference from float64", name);
      deviations_.expect_at_most(1e-4, from_exact.max().item<double>(), "weight, any element's difference from float64",
                                 name);
      astray_from_exact += (from_exact > 1e-5).sum().item<int64_t>();
    }
    const at::Tensor size = expected_.stored("gradient." + name).values().abs();
    const at::Tensor is_certain = size > 1e-5 * size.max();
    deviations_.expect_at_most(2e-5,
                               relative_difference(found.masked_select(is_certain), wanted.masked_select(is_certain)),
                               "weight, elements with a certain gradient", name);
  }
  deviations_.expect_at_most(kTimesTheReference * std::max(1.0, static_cast<double>(reference_astray)),
                             static_cast<double>(astray), "elements that differ by more than 1e-5", GetParam());
  deviations_.expect_at_most(kTimesTheReference * std::max(1.0, static_cast<double>(reference_astray)),
                             static_cast<double>(astray_from_exact),
                             "elements that differ by more than 1e-5 from float64", GetParam());
}

TEST_P(LoraParity, SavedAdapterIsTheSame) {
  const auto model = case_.load();
  const TemporaryFolder saved;
  models::save_adapter(*model, case_.base().checkpoint(), saved.path());
  EXPECT_TRUE(models::is_adapter(saved.path()));
  const io::SafetensorsFile found(saved.path() / "adapter_model.safetensors");
  const io::SafetensorsFile wanted(case_.adapter() / "adapter_model.safetensors");
  EXPECT_THAT(found.names(), testing::UnorderedElementsAreArray(wanted.names()));
  for (const auto& name : wanted.names()) EXPECT_TRUE(at::equal(found.tensor(name), wanted.tensor(name))) << name;

  const auto written = io::read_json(saved.path() / "adapter_config.json");
  const auto original = io::read_json(case_.adapter() / "adapter_config.json");
  for (const char* key : {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "peft_type"}) {
    EXPECT_EQ(written.at(key), original.at(key)) << key;
  }
  EXPECT_EQ(models::base_of_adapter(saved.path()), case_.base().checkpoint());
  EXPECT_TRUE(std::filesystem::exists(saved.path() / "tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(saved.path() / "config.json"));
}

TEST_P(LoraParity, MergedWeightsAreThoseOfPeft) {
  const TemporaryFolder folder;
  models::save_adapter(*case_.load(), case_.base().checkpoint(), folder.path());
  models::merge_adapter(folder.path(), folder.path() / "merged");
  const io::CheckpointTensors merged(folder.path() / "merged");
  const io::CheckpointTensors base(case_.base().checkpoint());
  const auto model = case_.load();
  const auto adapted = adapter_names(*model, goes_with_adapter);
  int64_t compared = 0;
  for (const auto& parameter : model->parameters().all()) {
    if (parameter.is_adapter) continue;
    const std::string path = parameter.name.substr(0, parameter.name.rfind('.'));
    const at::Tensor found = merged.tensor(model->checkpoint_name(parameter.name));
    if (expected_.contains("merged." + parameter.name)) {
      ++compared;
      deviations_.expect_at_most(1e-6, relative_difference(found, expected_.tensor("merged." + parameter.name)),
                                 "merged weight", parameter.name);
    } else if (!adapted.contains(kPrefix + path + ".lora_A.weight")) {
      EXPECT_TRUE(at::equal(found, parameter.tensor.detach())) << parameter.name;
    }
  }
  EXPECT_THAT(merged.names(), testing::UnorderedElementsAreArray(base.names()));
  EXPECT_EQ(compared, 3);

  // The merged checkpoint is the adapted model.
  const at::NoGradGuard no_gradients;
  const auto batch = data::collate(samples_);
  const auto plain = models::load_model(folder.path() / "merged", at::kCPU, at::kFloat);
  EXPECT_FALSE(plain->parameters().lora().has_value());
  const at::Tensor found = plain->forward(batch, {.positions = batch.label_positions}).hidden;
  const at::Tensor wanted = models::load_model(folder.path(), at::kCPU, at::kFloat)
                                ->forward(batch, {.positions = batch.label_positions})
                                .hidden;
  deviations_.expect_at_most(1e-5, relative_difference(found, wanted), "hidden states of the merged model", GetParam());
}

TEST_P(LoraParity, AFreshAdapterChangesNothing) {
  const at::NoGradGuard no_gradients;
  const auto model = case_.build(case_.settings());
  models::initialize_adapter(*model, /*seed=*/3);
  const auto batch = data::collate(samples_);
  const at::Tensor found = model->forward(batch, {.positions = batch.label_positions}).hidden;
  const at::Tensor wanted = case_.base().load_model()->forward(batch, {.positions = batch.label_positions}).hidden;
  deviations_.expect_at_most(case_.settings().use_dora ? 2e-6 : 0, relative_difference(found, wanted),
                             "hidden states with a fresh adapter", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, LoraParity,
                         testing::Values("all_linear", "rank_stabilised_names", "text_tower", "vision_tower",
                                         "text_only", "dora", "dora_rank_stabilised", "llava_all_linear",
                                         "llava_modules_to_save", "qwen_all_linear", "qwen3_all_linear"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "engine/small_step.h"
#include "parity/capability_record.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/exact_values.h"
#include "parity/logits.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::parity {
namespace {

using nn::Quantization;

std::filesystem::path get_data_folder() {
  return std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/quantization";
}

/// Quantized matrices of bitsandbytes.
class QuantizedMatrices : public testing::TestWithParam<std::string> {
 protected:
  at::Tensor read_expected(const std::string& part) const { return file_.tensor(GetParam() + "." + part); }

  std::shared_ptr<nn::QuantizedWeight> quantize(Quantization quantization) const {
    const at::Tensor source = read_expected("source");
    auto weight = nn::Quantizer(quantization, source.options()).make_weight(source.sizes());
    weight->quantize(source);
    return weight;
  }

  static std::map<std::string, at::Tensor> get_state(const nn::QuantizedWeight& weight) {
    const auto state = weight.state();
    return {state.begin(), state.end()};
  }

  const io::SafetensorsFile file_{get_data_folder() / "matrices.safetensors"};
};

TEST_P(QuantizedMatrices, Nf4HoldsTheSameBytes) {
  const auto state = get_state(*quantize(Quantization::kNf4));
  for (const char* part : {"weight", "absmax", "nested_absmax"}) {
    EXPECT_TRUE(at::equal(state.at(part), read_expected(std::string("nf4.") + part))) << part;
  }
  // A mean over all blocks: its last bit depends on the processor's order of additions.
  const double mean = read_expected("nf4.nested_offset").item<double>();
  EXPECT_NEAR(state.at("nested_offset").item<double>(), mean, 1e-7 * mean);
}

TEST_P(QuantizedMatrices, Nf4HasTheSameValues) {
  const auto weight = quantize(Quantization::kNf4);
  const at::Tensor expected = read_expected("nf4.values");
  if (expected.scalar_type() == at::kFloat && expected.any().item<bool>()) {
    EXPECT_LE(largest_difference(weight->dequantize(), expected), 3e-7);
  }
  // With bitsandbytes' mean, results are equal in every dtype.
  get_state(*weight).at("nested_offset").copy_(read_expected("nf4.nested_offset"));
  EXPECT_TRUE(at::equal(weight->dequantize(), expected));
}

TEST_P(QuantizedMatrices, Int8HoldsTheSameBytes) {
  const auto state = get_state(*quantize(Quantization::kInt8));
  for (const char* part : {"weight", "SCB"}) {
    EXPECT_TRUE(at::equal(state.at(part), read_expected(std::string("int8.") + part))) << part;
  }
}

TEST_P(QuantizedMatrices, Int8HasTheSameValues) {
  EXPECT_TRUE(at::equal(quantize(Quantization::kInt8)->dequantize(), read_expected("int8.values")));
}

INSTANTIATE_TEST_SUITE_P(Matrices, QuantizedMatrices,
                         testing::Values("one_nested_block", "several_nested_blocks_and_a_rest", "no_multiple_of_64",
                                         "odd_count", "less_than_a_block", "outliers", "zeros", "only_zeros", "tiny",
                                         "even_spread"),
                         [](const auto& instance) { return instance.param; });

TEST(QuantizationTables, AreThoseOfBitsandbytes) {
  const io::SafetensorsFile file(get_data_folder() / "matrices.safetensors");
  EXPECT_TRUE(at::equal(nn::make_nf4_codebook(), file.tensor("nf4")));
  EXPECT_TRUE(at::equal(nn::make_dynamic_codebook(), file.tensor("dynamic_map")));
}

/// Adapter on a quantized base, with results of peft and bitsandbytes.
class QuantizedLora : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (quantization_ == Quantization::kNf4) record_capability(base_.checkpoint(), "NF4");
  }
  void TearDown() override { deviations_.report(); }

  std::unique_ptr<models::VisionLanguageModel> load(at::ScalarType dtype = at::kFloat) const {
    const auto adapter = folder_ / "adapter";
    auto model =
        models::build_model(base_.checkpoint(), at::kCPU, dtype, models::read_adapter_settings(adapter), quantization_);
    models::load_weights(*model, base_.checkpoint());
    models::load_adapter(*model, adapter);
    return model;
  }

  void check_gradients(models::VisionLanguageModel& model, int64_t micro_batch_size) {
    const auto result = engine::accumulate_gradients(model, samples_, {.micro_batch_size = micro_batch_size});
    const ExactValues exact(*load(at::kDouble), samples_);
    expect_close_to_exact(deviations_, result.loss, expected_.tensor("loss"), exact.loss(), "loss", GetParam());
    for (const auto& parameter : model.parameters().all()) {
      const std::string name = "gradient.base_model.model." + parameter.name;
      ASSERT_EQ(parameter.is_adapter, expected_.contains(name)) << name;
      if (!parameter.is_adapter) continue;
      expect_close_to_exact(deviations_, parameter.tensor.grad(), expected_.stored(name),
                            exact.gradient(parameter.name), "gradient", name);
    }
  }

  const std::filesystem::path folder_ = get_data_folder() / GetParam();
  const nlohmann::json description_ = io::read_json(folder_ / "case.json");
  const ReferenceFile expected_{folder_ / "expected.safetensors"};
  const Quantization quantization_ =
      description_.at("quantization") == "nf4" ? Quantization::kNf4 : Quantization::kInt8;
  const Case base_{description_.at("base")};
  const std::vector<data::Sample> samples_ = base_.samples();
  Deviations deviations_;
};

TEST_P(QuantizedLora, TheSameLinearsAreQuantized) {
  std::vector<std::string> quantized_paths;
  const auto model = load();
  for (const auto& parameter : model->parameters().all()) {
    if (parameter.quantized_weight) quantized_paths.push_back(parameter.name.substr(0, parameter.name.rfind('.')));
  }
  auto expected = description_.at("quantized").get<std::vector<std::string>>();
  // transformers leaves one Linear of SigLIP's unused head unquantized.
  for (const auto& linear : model->parameters().linears()) {
    if (linear.component != nn::Component::kUnused) continue;
    std::erase(expected, linear.path);
    std::erase(quantized_paths, linear.path);
  }
  EXPECT_THAT(quantized_paths, testing::UnorderedElementsAreArray(expected));
}

TEST_P(QuantizedLora, Logits) {
  const ExactValues exact(*load(at::kDouble), samples_);
  const at::NoGradGuard no_gradients;
  const auto model = load();
  const auto batch = data::collate(samples_);
  const at::Tensor logits =
      compute_logits(*model, model->forward(batch, {.positions = batch.label_positions}).hidden_states);
  int64_t first = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const StoredTensor expected = expected_.stored(fmt::format("sample.{}.logits", i));
    const int64_t rows = samples_[i].label_tokens();
    expect_close_to_exact(deviations_, logits.narrow(0, first, rows), expected, exact.logits().narrow(0, first, rows),
                          "logits", samples_[i].id);
    first += samples_[i].label_tokens();
  }
}

TEST_P(QuantizedLora, LossAndGradients) {
  check_gradients(*load(), std::ssize(samples_));
}

TEST_P(QuantizedLora, LossAndGradientsWithEveryBlockRecomputed) {
  const auto model = load();
  model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
  check_gradients(*model, 1);
}

TEST_P(QuantizedLora, FiveStepsOfAdamW) {
  const auto model = load();
  const auto exact_model = load(at::kDouble);
  const engine::OptimizerSettings settings = {.weight_decay = description_.at("weight_decay"),
                                              .max_grad_norm = description_.at("max_grad_norm")};
  const double rate = description_.at("learning_rate");
  expect_same_steps(deviations_, *model, *exact_model, settings, rate, samples_, expected_,
                    "gradient.base_model.model.", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedLora,
                         testing::Values("nf4_all_linear", "nf4_dora", "nf4_llava", "nf4_qwen", "nf4_qwen3",
                                         "nf4_qwen3_5", "nf4_gemma4", "int8_all_linear"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

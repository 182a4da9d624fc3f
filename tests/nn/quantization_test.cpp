#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <ostream>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {
namespace {

using testing::ElementsAre;

constexpr int64_t kNumTokens = 20;  // enough rows for oneDNN's product
constexpr int64_t kInFeatures = 50;
constexpr int64_t kOutFeatures = 70;

at::Tensor make_normal(at::IntArrayRef sizes, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes);
}

std::shared_ptr<QuantizedWeight> quantize_weight(Quantization quantization, const at::Tensor& weight,
                                                 at::ScalarType dtype = at::kFloat) {
  auto result = Quantizer(quantization, at::TensorOptions(dtype)).make_weight(weight.sizes());
  result->quantize(weight);
  return result;
}

std::map<std::string, at::Tensor> get_state(const QuantizedWeight& weight) {
  const auto state = weight.state();
  return {state.begin(), state.end()};
}

std::vector<int64_t> to_integers(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.data_ptr<int64_t>(), wide.data_ptr<int64_t>() + wide.numel()};
}

TEST(Nf4, PacksTheFirstOfTwoValuesIntoTheHighBits) {
  // Indices 15, 7, 0, 14 and 8; the last byte is padded with a zero.
  const at::Tensor weight = at::tensor({2.0F, 0.0F, -2.0F, 1.4F, 0.2F}).view({1, 5});
  const auto weight_under_test = quantize_weight(Quantization::kNf4, weight);
  const at::Tensor packed = get_state(*weight_under_test).at("weight");
  EXPECT_EQ(packed.sizes(), at::IntArrayRef({3, 1}));
  EXPECT_THAT(to_integers(packed), ElementsAre(0xF7, 0x0E, 0x87));
  const at::Tensor expected =
      2 * at::tensor({1.0F, 0.0F, -1.0F, 0.7229568362236023F, 0.07958029955625534F}).view({1, 5});
  EXPECT_TRUE(at::equal(weight_under_test->dequantize(), expected));
}

TEST(Nf4, TakesAboutFourBitsPerWeight) {
  // 16 nested blocks, so there is no padding.
  const auto state = get_state(*quantize_weight(Quantization::kNf4, make_normal({512, 512}, 1)));
  EXPECT_EQ(state.at("weight").nbytes(), 512U * 512 / 2);
  EXPECT_EQ(state.at("absmax").nbytes(), 512U * 512 / 64);
  EXPECT_EQ(state.at("nested_absmax").nbytes(), 4U * 512 * 512 / 64 / 256);
  EXPECT_EQ(state.at("nested_offset").nbytes(), 4U);
}

TEST(Nf4, IsWithinHalfAStepOfTheWeight) {
  const at::Tensor weight = make_normal({130, 130}, 2);
  const at::Tensor values = quantize_weight(Quantization::kNf4, weight)->dequantize();
  EXPECT_EQ(values.sizes(), weight.sizes());
  // The widest step of the table is 0.304 of a block's absmax, which has a small error itself.
  EXPECT_LT((values - weight).abs().max().item<double>(), 0.16 * weight.abs().max().item<double>());
  EXPECT_LT(((values - weight).norm() / weight.norm()).item<double>(), 0.1);
}

TEST(Nf4, ChunksMatchTheWhole) {
  // More than one chunk of 8,388,608 values. Blocks share only the offset and scale of the absmax.
  const at::Tensor weight = make_normal({2100, 4096}, 3);
  const auto weight_under_test = quantize_weight(Quantization::kNf4, weight);
  const at::Tensor last = weight.narrow(0, 2080, 20);
  const at::Tensor packed = get_state(*weight_under_test).at("weight");
  EXPECT_TRUE(at::equal(packed.narrow(0, 2080 * 2048, 20 * 2048),
                        get_state(*quantize_weight(Quantization::kNf4, last)).at("weight")));
  EXPECT_LT(((weight_under_test->dequantize() - weight).norm() / weight.norm()).item<double>(), 0.1);
}

using Weights = std::vector<std::shared_ptr<QuantizedWeight>>;

Weights make_weight_group(const std::vector<int64_t>& out_features, int64_t in_features,
                          Quantization quantization = Quantization::kNf4) {
  return Quantizer(quantization, at::TensorOptions(at::kBFloat16)).make_weight_group(out_features, in_features);
}

std::vector<at::Tensor> dequantize_all(const Weights& weights) {
  return dequantize_group({weights.begin(), weights.end()});
}

void expect_adjacent(const std::vector<at::Tensor>& values, bool expected = true) {
  bool adjacent = true;
  for (size_t i = 1; i < values.size(); ++i) {
    adjacent &=
        static_cast<const char*>(values[i - 1].const_data_ptr()) + values[i - 1].nbytes() == values[i].const_data_ptr();
  }
  EXPECT_EQ(adjacent, expected);
}

void expect_each_matches_alone(const Weights& weights) {
  const auto values = dequantize_all(weights);
  ASSERT_EQ(values.size(), weights.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i], weights[i]->dequantize())) << i;
}

TEST(Nf4Group, MatchesEachWeightAlone) {
  for (const auto& out_features :
       std::vector<std::vector<int64_t>>{{128, 64, 64}, {64, 64, 70}, {70, 70}, {1, 300, 7}}) {
    const auto group = make_weight_group(out_features, 256);
    for (size_t i = 0; i < group.size(); ++i) {
      const at::Tensor weight = make_normal({out_features[i], 256}, i) * (1 + static_cast<double>(i));
      group[i]->quantize(weight);
      const auto single = quantize_weight(Quantization::kNf4, weight, at::kBFloat16);
      for (const auto& [name, tensor] : single->state()) {
        EXPECT_TRUE(at::equal(get_state(*group[i]).at(name), tensor)) << name << " of " << i;
      }
    }
    for (size_t i = 0; i < group.size(); ++i) {
      const at::Tensor weight = make_normal({out_features[i], 256}, i) * (1 + static_cast<double>(i));
      EXPECT_TRUE(at::equal(dequantize_all(group)[i],
                            quantize_weight(Quantization::kNf4, weight, at::kBFloat16)->dequantize()));
    }
    expect_each_matches_alone(group);
  }
}

TEST(Nf4Group, IsOneTensorForWholeSuperBlocks) {
  expect_adjacent(dequantize_all(make_weight_group({128, 64, 64}, 256)));
  expect_adjacent(dequantize_all(make_weight_group({64, 64, 70}, 256)));
  const Weights weights = make_weight_group({70, 64}, 256);
  expect_adjacent(dequantize_all(weights), weights.front()->has_dequantize_kernel());
}

/// 1,920 superblocks, in two chunks that meet within the second weight.
TEST(Nf4Group, ChunksMayCrossWeights) {
  const auto group = make_weight_group({2560, 2560, 2560}, 4096);
  for (size_t i = 0; i < group.size(); ++i) {
    at::manual_seed(i);
    for (const auto& [name, tensor] : group[i]->state()) {
      if (tensor.scalar_type() == at::kByte) {
        tensor.detach().random_(0, 256);
      } else {
        tensor.detach().uniform_(0.5, 1);
      }
    }
  }
  expect_each_matches_alone(group);
}

TEST(Nf4Group, IsEmptyForOtherOrdersAndFormats) {
  const auto group = make_weight_group({64, 64, 64}, 256);
  EXPECT_TRUE(dequantize_all({group[1], group[0]}).empty());
  EXPECT_TRUE(dequantize_all({group[0], group[2]}).empty());
  EXPECT_EQ(dequantize_all({group[1], group[2]}).size(), 2U);
  EXPECT_TRUE(dequantize_all({group[2], make_weight_group({64}, 256)[0]}).empty());
  EXPECT_TRUE(dequantize_all(make_weight_group({64, 64}, 256, Quantization::kInt8)).empty());
}

TEST(Int8, RoundsEachRowToAHundredAndTwentySevenSteps) {
  const at::Tensor weight = at::tensor({1.0F, -0.5F, 0.25F, 0.0F, 0.0F, 0.0F, -254.0F, 3.0F, 1.0F}).view({3, 3});
  const auto weight_under_test = quantize_weight(Quantization::kInt8, weight);
  const auto state = get_state(*weight_under_test);
  EXPECT_TRUE(at::equal(state.at("SCB"), at::tensor({1.0F, 0.0F, 254.0F})));
  EXPECT_THAT(to_integers(state.at("weight")), ElementsAre(127, -64, 32, 0, 0, 0, -127, 2, 0));
  EXPECT_NEAR(weight_under_test->dequantize()[0][1].item<double>(), -64.0 / 127, 1e-7);
}

TEST(QuantizationNames, MatchTheConfiguration) {
  for (const auto& [name, quantization] : get_quantization_names()) EXPECT_EQ(to_string(quantization), name);
}

struct LinearCase {
  std::string name;
  Quantization quantization;
  LoraSettings lora;
  at::ScalarType dtype = at::kFloat;
};

void PrintTo(const LinearCase& linear_case, std::ostream* out) {
  *out << linear_case.name;
}

/// Linears with quantized weights, and others with the same values as plain tensors.
class QuantizedLinear : public testing::TestWithParam<LinearCase> {
 protected:
  static ParameterSettings settings(Quantization quantization) {
    return {at::TensorOptions(GetParam().dtype), GetParam().lora, quantization};
  }

  QuantizedLinear() {
    for (size_t i = 0; i < quantized_store_.all().size(); ++i) {
      const Parameter& parameter = quantized_store_.all()[i];
      parameter.set_values(make_normal(parameter.sizes(), i));
      plain_store_.all()[i].set_values(parameter.values());
    }
  }

  static std::vector<at::Tensor> collect_inputs(const ParameterStore& store, const at::Tensor& x) {
    std::vector<at::Tensor> tensors{x};
    for (const auto& parameter : store.all()) {
      if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  static std::vector<at::Tensor> collect_tensors(const ParameterStore& store) {
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : store.all()) tensors.push_back(parameter.tensor);
    return tensors;
  }

  /// Returns output and gradients.
  std::vector<at::Tensor> run(const ParameterStore& store, const Linear& linear, bool is_recomputed) const {
    const at::Tensor x = make_normal({kNumTokens, kInFeatures}, 7).to(GetParam().dtype).set_requires_grad(true);
    const auto inputs = collect_inputs(store, x);
    const DropoutScope same_dropout(std::vector<DropoutSegment>{{.seed = 8}});
    const at::Tensor y = is_recomputed ? run_checkpointed(std::ref(linear), x, collect_tensors(store)) : linear(x);
    std::vector<at::Tensor> all{y.detach()};
    const auto gradients = torch::autograd::grad({y.pow(2).sum()}, inputs);
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }

  ParameterStore plain_store_{settings(Quantization::kNone)};
  ParameterStore quantized_store_{settings(GetParam().quantization)};
  const Linear plain_{ParameterScope(plain_store_, Component::kLanguageModel, "up"), kInFeatures, kOutFeatures,
                      /*bias=*/true};
  const Linear quantized_{ParameterScope(quantized_store_, Component::kLanguageModel, "up"), kInFeatures, kOutFeatures,
                          /*bias=*/true};
};

TEST_P(QuantizedLinear, MatchesThePlainLinear) {
  const auto expected = run(plain_store_, plain_, /*recomputed=*/false);
  for (const bool is_recomputed : {false, true}) {
    const auto actual = run(quantized_store_, quantized_, is_recomputed);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

TEST_P(QuantizedLinear, CountsWeightsNotBytes) {
  EXPECT_EQ(quantized_store_.count_elements(), plain_store_.count_elements());
  EXPECT_EQ(quantized_store_.all()[0].sizes(), at::IntArrayRef({kOutFeatures, kInFeatures}));
  EXPECT_FALSE(quantized_store_.all()[0].tensor.requires_grad());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, QuantizedLinear,
    testing::Values(LinearCase{"nf4", Quantization::kNf4, {.rank = 3}},
                    LinearCase{"nf4_bf16", Quantization::kNf4, {.rank = 3}, at::kBFloat16},
                    LinearCase{"nf4_without_adapter", Quantization::kNf4, {.rank = 3, .target_modules = {"down"}}},
                    LinearCase{"nf4_dropout", Quantization::kNf4, {.rank = 3, .dropout = 0.3}},
                    LinearCase{"nf4_dora", Quantization::kNf4, {.rank = 3, .use_dora = true}},
                    LinearCase{"nf4_dora_dropout", Quantization::kNf4, {.rank = 3, .dropout = 0.3, .use_dora = true}},
                    LinearCase{"int8", Quantization::kInt8, {.rank = 3}},
                    LinearCase{"int8_bf16_dora", Quantization::kInt8, {.rank = 3, .use_dora = true}, at::kBFloat16}),
    [](const auto& instance) { return instance.param.name; });

TEST(QuantizedLinearMemory, KeepsNeitherInputNorWeight) {
  const at::Tensor x = make_normal({kNumTokens, kInFeatures}, 1)
                           .set_requires_grad(true)
                           .neg();  // not a leaf, which its gradient would hold
  const LinearWeight weight(quantize_weight(Quantization::kNf4, make_normal({kOutFeatures, kInFeatures}, 2)));
  const auto count_references = [&x] { return x.use_count() + x.storage().use_count(); };
  const auto before = count_references();
  const at::Tensor y = linear(x, weight, {});
  EXPECT_EQ(count_references(), before);
  EXPECT_TRUE(y.requires_grad());
}

/// A group of Linears with these output sizes.
struct GroupCase {
  std::string name;
  Quantization quantization;
  std::vector<int64_t> out_features;
  bool bias;
  LoraSettings lora;
};

void PrintTo(const GroupCase& group_case, std::ostream* out) {
  *out << group_case.name;
}

class QuantizedLinears : public testing::TestWithParam<GroupCase> {
 protected:
  static constexpr int64_t kIn = 64;  // 256 outputs fill a superblock

  static ParameterSettings settings(Quantization quantization) {
    return {at::TensorOptions(at::kDouble), GetParam().lora, quantization};
  }

  QuantizedLinears() {
    for (size_t i = 0; i < quantized_store_.all().size(); ++i) {
      const Parameter& parameter = quantized_store_.all()[i];
      parameter.set_values(make_normal(parameter.sizes(), i));
      plain_store_.all()[i].set_values(parameter.values());
    }
  }

  /// Returns output and gradients.
  static std::vector<at::Tensor> run(const ParameterStore& store, const MergedLinear& linears) {
    const at::Tensor x = make_normal({kNumTokens, kIn}, 7).to(at::kDouble).set_requires_grad(true);
    std::vector<at::Tensor> inputs{x};
    for (const auto& parameter : store.all()) {
      if (parameter.tensor.requires_grad()) inputs.push_back(parameter.tensor);
    }
    const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 8}});
    const at::Tensor y = linears(x);
    auto results = torch::autograd::grad({y.pow(2).sum()}, inputs);
    results.push_back(y.detach());
    return results;
  }

  static void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(((actual[i] - expected[i]).norm() / expected[i].norm()).item<double>(), 1e-13) << i;
    }
  }

  static MergedLinear make_linears(ParameterStore& store) {
    return {ParameterScope(store, Component::kLanguageModel, "at"),
            {"q", "k", "v"},
            kIn,
            GetParam().out_features,
            GetParam().bias};
  }

  ParameterStore plain_store_{settings(Quantization::kNone)};
  ParameterStore quantized_store_{settings(GetParam().quantization)};
  const MergedLinear plain_ = make_linears(plain_store_);
  const MergedLinear quantized_ = make_linears(quantized_store_);
};

TEST_P(QuantizedLinears, MatchPlainLinears) {
  expect_close(run(quantized_store_, quantized_), run(plain_store_, plain_));
}

TEST_P(QuantizedLinears, MatchWithSeparateWeights) {
  const auto expected = run(quantized_store_, quantized_);
  for (const auto& parameter : quantized_store_.all()) {
    if (parameter.name != "at.k.weight" || !parameter.quantized_weight) continue;
    for (at::Tensor tensor : parameter.quantized_weight->tensors()) tensor.set_data(tensor.clone());
  }
  expect_close(run(quantized_store_, quantized_), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, QuantizedLinears,
    testing::Values(
        GroupCase{"nf4", Quantization::kNf4, {512, 256, 256}, false, {.rank = 3}},
        GroupCase{"nf4_bias", Quantization::kNf4, {256, 256, 256}, true, {.rank = 3}},
        GroupCase{"nf4_gaps", Quantization::kNf4, {100, 90, 80}, true, {.rank = 3}},
        GroupCase{"nf4_dropout", Quantization::kNf4, {512, 256, 256}, true, {.rank = 3, .dropout = 0.3}},
        GroupCase{"nf4_dora", Quantization::kNf4, {256, 256, 256}, true, {.rank = 3, .use_dora = true}},
        GroupCase{
            "nf4_beside_a_saved_one", Quantization::kNf4, {256, 256, 256}, true, {.rank = 3, .modules_to_save = {"k"}}},
        GroupCase{"int8", Quantization::kInt8, {256, 256, 256}, true, {.rank = 3}}),
    [](const auto& instance) { return instance.param.name; });

TEST(QuantizedStore, RequiresFrozenWeights) {
  EXPECT_THROW(ParameterStore(ParameterSettings{at::TensorOptions(at::kFloat), std::nullopt, Quantization::kNf4}),
               InternalError);
}

}  // namespace
}  // namespace vlmtrain::nn

#include "vlmtrain/nn/quantization.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <ostream>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::nn {
namespace {

using testing::ElementsAre;

constexpr int64_t kTokens = 20;  // enough for oneDNN's product
constexpr int64_t kInFeatures = 50;
constexpr int64_t kOutFeatures = 70;

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes);
}

std::shared_ptr<QuantizedWeight> quantized(Quantization quantization, const at::Tensor& weight,
                                           at::ScalarType dtype = at::kFloat) {
  auto made = Quantizer(quantization, at::TensorOptions(dtype)).make(weight.sizes());
  made->quantize(weight);
  return made;
}

std::map<std::string, at::Tensor> state_of(const QuantizedWeight& weight) {
  const auto state = weight.state();
  return {state.begin(), state.end()};
}

std::vector<int64_t> bytes_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.data_ptr<int64_t>(), wide.data_ptr<int64_t>() + wide.numel()};
}

TEST(Nf4, PacksTheFirstOfTwoValuesIntoTheHighBits) {
  // Indices 15, 7, 0, 14 and, of a last value without a neighbour, 8 beside a zero.
  const at::Tensor weight = at::tensor({2.0F, 0.0F, -2.0F, 1.4F, 0.2F}).view({1, 5});
  const auto made = quantized(Quantization::kNf4, weight);
  const at::Tensor packed = state_of(*made).at("weight");
  EXPECT_EQ(packed.sizes(), at::IntArrayRef({3, 1}));
  EXPECT_THAT(bytes_of(packed), ElementsAre(0xF7, 0x0E, 0x87));
  const at::Tensor wanted = 2 * at::tensor({1.0F, 0.0F, -1.0F, 0.7229568362236023F, 0.07958029955625534F}).view({1, 5});
  EXPECT_TRUE(at::equal(made->dequantize(), wanted));
}

TEST(Nf4, TakesFourBitsAndAnEighthOfABitAWeight) {
  // 16 nested blocks, so that nothing is filled up.
  const auto state = state_of(*quantized(Quantization::kNf4, normal({512, 512}, 1)));
  EXPECT_EQ(state.at("weight").nbytes(), 512U * 512 / 2);
  EXPECT_EQ(state.at("absmax").nbytes(), 512U * 512 / 64);
  EXPECT_EQ(state.at("nested_absmax").nbytes(), 4U * 512 * 512 / 64 / 256);
  EXPECT_EQ(state.at("nested_offset").nbytes(), 4U);
}

TEST(Nf4, IsWithinHalfAStepOfTheWeight) {
  const at::Tensor weight = normal({130, 130}, 2);
  const at::Tensor values = quantized(Quantization::kNf4, weight)->dequantize();
  EXPECT_EQ(values.sizes(), weight.sizes());
  // The widest step of the table is 0.304 of a block's absmax, which is itself off by a little.
  EXPECT_LT((values - weight).abs().max().item<double>(), 0.16 * weight.abs().max().item<double>());
  EXPECT_LT(((values - weight).norm() / weight.norm()).item<double>(), 0.1);
}

TEST(Nf4, PiecesAreTreatedAsTheWhole) {
  // More than a piece of 8,388,608 values. A block knows of the others by the offset and scale of the absmax only.
  const at::Tensor weight = normal({2100, 4096}, 3);
  const auto made = quantized(Quantization::kNf4, weight);
  const at::Tensor last = weight.narrow(0, 2080, 20);
  const at::Tensor packed = state_of(*made).at("weight");
  EXPECT_TRUE(
      at::equal(packed.narrow(0, 2080 * 2048, 20 * 2048), state_of(*quantized(Quantization::kNf4, last)).at("weight")));
  EXPECT_LT(((made->dequantize() - weight).norm() / weight.norm()).item<double>(), 0.1);
}

TEST(Int8, RoundsEachRowToAHundredAndTwentySevenSteps) {
  const at::Tensor weight = at::tensor({1.0F, -0.5F, 0.25F, 0.0F, 0.0F, 0.0F, -254.0F, 3.0F, 1.0F}).view({3, 3});
  const auto made = quantized(Quantization::kInt8, weight);
  const auto state = state_of(*made);
  EXPECT_TRUE(at::equal(state.at("SCB"), at::tensor({1.0F, 0.0F, 254.0F})));
  EXPECT_THAT(bytes_of(state.at("weight")), ElementsAre(127, -64, 32, 0, 0, 0, -127, 2, 0));
  EXPECT_NEAR(made->dequantize()[0][1].item<double>(), -64.0 / 127, 1e-7);
}

TEST(QuantizationNames, AreThoseOfTheConfiguration) {
  for (const auto& [name, quantization] : quantizations()) EXPECT_EQ(name_of(quantization), name);
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

/// Linears with quantised weights beside ones with the same values in full.
class QuantizedLinear : public testing::TestWithParam<LinearCase> {
 protected:
  static ParameterSettings settings(Quantization quantization) {
    return {at::TensorOptions(GetParam().dtype), GetParam().lora, quantization};
  }

  QuantizedLinear() {
    for (size_t i = 0; i < quantized_store_.all().size(); ++i) {
      const Parameter& parameter = quantized_store_.all()[i];
      parameter.set_values(normal(parameter.sizes(), i));
      plain_store_.all()[i].set_values(parameter.values());
    }
  }

  static std::vector<at::Tensor> with_trained(const ParameterStore& store, const at::Tensor& x) {
    std::vector<at::Tensor> tensors{x};
    for (const auto& parameter : store.all()) {
      if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  static std::vector<at::Tensor> tensors_of(const ParameterStore& store) {
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : store.all()) tensors.push_back(parameter.tensor);
    return tensors;
  }

  /// Output and gradients.
  std::vector<at::Tensor> run(const ParameterStore& store, const Linear& linear, bool recomputed) const {
    const at::Tensor x = normal({kTokens, kInFeatures}, 7).to(GetParam().dtype).set_requires_grad(true);
    const auto trained = with_trained(store, x);
    const DropoutScope same_dropout(std::vector<DropoutUnit>{{.seed = 8}});
    const at::Tensor y = recomputed ? recompute(std::ref(linear), x, tensors_of(store)) : linear(x);
    std::vector<at::Tensor> all{y.detach()};
    const auto gradients = torch::autograd::grad({y.pow(2).sum()}, trained);
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

TEST_P(QuantizedLinear, ComputesWhatThePlainOneDoesWithTheSameValues) {
  const auto wanted = run(plain_store_, plain_, /*recomputed=*/false);
  for (const bool recomputed : {false, true}) {
    const auto found = run(quantized_store_, quantized_, recomputed);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(at::equal(found[i], wanted[i])) << i;
  }
}

TEST_P(QuantizedLinear, CountsTheWeightsAndNotTheBytes) {
  EXPECT_EQ(quantized_store_.total_elements(), plain_store_.total_elements());
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
  const at::Tensor x =
      normal({kTokens, kInFeatures}, 1).set_requires_grad(true).neg();  // no leaf, which its gradient holds
  const LinearWeight weight(quantized(Quantization::kNf4, normal({kOutFeatures, kInFeatures}, 2)));
  const auto holders = [&x] { return x.use_count() + x.storage().use_count(); };
  const auto before = holders();
  const at::Tensor y = linear(x, weight, {});
  EXPECT_EQ(holders(), before);
  EXPECT_TRUE(y.requires_grad());
}

TEST(QuantizedStore, IsForWeightsThatAreNotTrained) {
  EXPECT_THROW(ParameterStore(ParameterSettings{at::TensorOptions(at::kFloat), std::nullopt, Quantization::kNf4}),
               InternalError);
}

}  // namespace
}  // namespace vlmtrain::nn

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

constexpr int64_t kGroupRows = 20;
constexpr int64_t kGroupIn = 6;
const std::vector<int64_t> kGroupOut{8, 4, 6};
constexpr double kGroupEps = 1e-3;

/// The input of Linears made from x, and the same by ATen's operations.
struct Norms {
  explicit Norms(ParameterStore& store)
      : layer_norm(ParameterScope(store, Component::kLanguageModel, "layer_norm"), kGroupIn, kGroupEps),
        rms_norm(ParameterScope(store, Component::kLanguageModel, "rms_norm"), kGroupIn, kGroupEps) {}

  LayerNorm layer_norm;
  RmsNorm rms_norm;
};

struct InputCase {
  std::string name;
  int64_t input_features;
  std::function<LinearInput(const Norms&, const at::Tensor&)> make_input;
  std::function<at::Tensor(const std::vector<at::Tensor>&, const at::Tensor&)>
      compute_reference;  // takes the norm's tensors
};

std::vector<InputCase> make_input_cases() {
  const auto activation = [](Activation function) {
    return [function](const Norms&, const at::Tensor& x) { return apply_activation(function, x); };
  };
  const auto make_reference = [](at::Tensor (*function)(const at::Tensor&)) {
    return [function](const std::vector<at::Tensor>&, const at::Tensor& x) { return function(x); };
  };
  return {
      {"tensor", kGroupIn, [](const Norms&, const at::Tensor& x) { return LinearInput(x); },
       make_reference([](const at::Tensor& x) { return x; })},
      {"layer_norm", kGroupIn, [](const Norms& p, const at::Tensor& x) { return p.layer_norm.make_linear_input(x); },
       [](const std::vector<at::Tensor>& norms, const at::Tensor& x) {
         return at::layer_norm(x, {kGroupIn}, norms[0], norms[1], kGroupEps);
       }},
      {"rms_norm", kGroupIn, [](const Norms& p, const at::Tensor& x) { return p.rms_norm.make_linear_input(x); },
       [](const std::vector<at::Tensor>& norms, const at::Tensor& x) {
         return at::rms_norm(x, {kGroupIn}, norms[2], kGroupEps);
       }},
      {"gelu", kGroupIn, activation(Activation::kGelu),
       make_reference([](const at::Tensor& x) { return at::gelu(x); })},
      {"gelu_tanh", kGroupIn, activation(Activation::kGeluTanh),
       make_reference([](const at::Tensor& x) { return at::gelu(x, "tanh"); })},
      {"quick_gelu", kGroupIn, activation(Activation::kQuickGelu),
       make_reference([](const at::Tensor& x) { return x * at::sigmoid(1.702 * x); })},
      {"relu", kGroupIn, activation(Activation::kRelu),
       make_reference([](const at::Tensor& x) { return at::relu(x); })},
      {"gated", 2 * kGroupIn, [](const Norms&, const at::Tensor& x) { return swiglu(x); },
       make_reference(
           [](const at::Tensor& x) { return at::silu(x.narrow(1, 0, kGroupIn)) * x.narrow(1, kGroupIn, kGroupIn); })},
      {"gelu_gated", 2 * kGroupIn, [](const Norms&, const at::Tensor& x) { return geglu(x); },
       make_reference([](const at::Tensor& x) {
         return at::gelu(x.narrow(1, 0, kGroupIn), "tanh") * x.narrow(1, kGroupIn, kGroupIn);
       })},
  };
}

struct AdapterCase {
  std::string name;
  std::optional<LoraSettings> lora;
};

std::vector<AdapterCase> make_adapter_cases() {
  return {{"trained", std::nullopt},
          {"lora", LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "k_proj", "v_proj"}}},
          {"lora_of_two", LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "v_proj"}}},
          {"dora", LoraSettings{.rank = 2, .alpha = 3, .use_dora = true, .target_modules = {"q_proj", "v_proj"}}}};
}

class LinearsTest : public testing::TestWithParam<std::tuple<InputCase, AdapterCase, bool>> {
 protected:
  LinearsTest() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().normal_();
  }

  at::Tensor find_tensor(const std::string& name) const {
    for (const auto& parameter : store_.all()) {
      if (parameter.name == name) return parameter.tensor;
    }
    return {};
  }

  /// Returns the result of one Linear by plain operations.
  at::Tensor compute_linear_reference(const std::string& path, const at::Tensor& x) const {
    const at::Tensor weight = find_tensor(path + ".weight"), bias = find_tensor(path + ".bias");
    const at::Tensor a = find_tensor(path + ".lora_A.weight"), b = find_tensor(path + ".lora_B.weight");
    if (!a.defined()) return at::linear(x, weight, bias);
    const at::Tensor sum = weight + store_.lora()->scale() * at::mm(b, a);
    const at::Tensor magnitude = find_tensor(path + ".lora_magnitude_vector");
    if (!magnitude.defined()) return at::linear(x, sum, bias);
    return at::linear(x, (magnitude / sum.detach().norm(2, {1})).unsqueeze(1) * sum, bias);
  }

  at::Tensor compute_reference(const at::Tensor& x, const at::Tensor& residual) const {
    const at::Tensor value =
        std::get<0>(GetParam())
            .compute_reference(
                {find_tensor("layer_norm.weight"), find_tensor("layer_norm.bias"), find_tensor("rms_norm.weight")}, x);
    const at::Tensor y =
        at::cat({compute_linear_reference("at.q_proj", value), compute_linear_reference("at.k_proj", value),
                 compute_linear_reference("at.v_proj", value)},
                1);
    return residual.defined() ? y + residual : y;
  }

  ParameterStore store_{ParameterSettings{at::TensorOptions(at::kDouble), std::get<1>(GetParam()).lora}};
  const Norms norms_{store_};
  const MergedLinear linears_{ParameterScope(store_, Component::kLanguageModel, "at"),
                              {"q_proj", "k_proj", "v_proj"},
                              kGroupIn,
                              kGroupOut,
                              std::get<2>(GetParam())};
};

TEST_P(LinearsTest, MatchTheirReferenceAndGradients) {
  const auto& input_case = std::get<0>(GetParam());
  const at::Tensor x = at::randn({kGroupRows, input_case.input_features}, at::kDouble).set_requires_grad(true);
  for (const bool has_residual : {false, true}) {
    const at::Tensor residual =
        has_residual ? at::randn({kGroupRows, 18}, at::kDouble).set_requires_grad(true) : at::Tensor();
    const at::Tensor y = linears_(input_case.make_input(norms_, x), residual);
    const at::Tensor expected = compute_reference(x, residual);
    EXPECT_LT(relative_difference(y, expected), 1e-13);

    std::vector<at::Tensor> inputs{x};
    if (has_residual) inputs.push_back(residual);
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) inputs.push_back(parameter.tensor);
    }
    const at::Tensor direction = at::randn_like(y);
    const auto gradients = [&](const at::Tensor& result) {
      return torch::autograd::grad({result}, inputs, {direction}, /*retain_graph=*/false, /*create_graph=*/false,
                                   /*allow_unused=*/true);
    };
    const auto actual_grads = gradients(y), expected_grads = gradients(expected);
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(actual_grads[i].defined(), expected_grads[i].defined()) << i;
      if (actual_grads[i].defined()) {
        EXPECT_LT(relative_difference(actual_grads[i], expected_grads[i]), 1e-12) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LinearsTest,
                         testing::Combine(testing::ValuesIn(make_input_cases()),
                                          testing::ValuesIn(make_adapter_cases()), testing::Bool()),
                         [](const auto& instance) {
                           return std::get<0>(instance.param).name + "_" + std::get<1>(instance.param).name +
                                  (std::get<2>(instance.param) ? "_bias" : "");
                         });

TEST(LinearsMemoryLayout, WeightsOfAGroupAreAdjacent) {
  ParameterStore store(ParameterSettings{at::TensorOptions(at::kFloat),
                                         LoraSettings{.rank = 2, .target_modules = {"q_proj", "k_proj", "v_proj"}}});
  const MergedLinear linears(ParameterScope(store, Component::kLanguageModel, "at"), {"q_proj", "k_proj", "v_proj"},
                             kGroupIn, kGroupOut, /*bias=*/true);
  const auto get_data = [&](const std::string& name) {
    const auto parameter = std::ranges::find(store.all(), "at." + name, &Parameter::name);
    return parameter->tensor.data_ptr<float>();
  };
  const auto follows = [&](const std::string& first, const std::string& second) {
    const auto parameter = std::ranges::find(store.all(), "at." + first, &Parameter::name);
    return get_data(first) + parameter->tensor.size(0) * parameter->tensor.stride(0) == get_data(second);
  };
  for (const std::string tensor : {".weight", ".bias", ".lora_A.weight"}) {
    EXPECT_TRUE(follows("q_proj" + tensor, "k_proj" + tensor)) << tensor;
    EXPECT_TRUE(follows("k_proj" + tensor, "v_proj" + tensor)) << tensor;
  }
}

/// Moves one of the weights, as a sharded block does.
TEST(LinearsMemoryLayout, SeparateWeightsGiveTheSameResult) {
  ParameterStore store{at::TensorOptions(at::kDouble)};
  const MergedLinear linears(ParameterScope(store, Component::kLanguageModel, "at"), {"q_proj", "k_proj", "v_proj"},
                             kGroupIn, kGroupOut, /*bias=*/true);
  for (const auto& parameter : store.all()) parameter.tensor.detach().normal_();
  const at::Tensor x = at::randn({kGroupRows, kGroupIn}, at::kDouble).set_requires_grad(true);
  std::vector<at::Tensor> inputs{x};
  for (const auto& parameter : store.all()) inputs.push_back(parameter.tensor);
  const auto run = [&] {
    const at::Tensor y = linears(x);
    auto results = torch::autograd::grad({y}, inputs, {at::ones_like(y)});
    results.push_back(y);
    return results;
  };
  const auto adjacent_results = run();
  for (const auto& parameter : store.all()) {
    if (parameter.name.find("k_proj") != std::string::npos) {
      at::Tensor tensor = parameter.tensor;
      tensor.set_data(tensor.detach().clone());
    }
  }
  const auto separate_results = run();
  for (size_t i = 0; i < adjacent_results.size(); ++i)
    EXPECT_LT(relative_difference(separate_results[i], adjacent_results[i]), 1e-13) << i;
}

}  // namespace
}  // namespace vlmtrain::nn

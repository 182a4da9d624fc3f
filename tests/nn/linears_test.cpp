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
#include "vlmtrain/nn/activation.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/rotary.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

constexpr int64_t kGroupRows = 20;
constexpr int64_t kGroupIn = 6;
const std::vector<int64_t> kGroupOut{8, 4, 6};
constexpr double kGroupEps = 1e-3;

/// What Linears read of x, and the same by ATen's own operations.
struct Prologues {
  explicit Prologues(ParameterStore& store)
      : layer_norm(ParameterScope(store, Component::kLanguageModel, "layer_norm"), kGroupIn, kGroupEps),
        rms_norm(ParameterScope(store, Component::kLanguageModel, "rms_norm"), kGroupIn, kGroupEps) {}

  LayerNorm layer_norm;
  RmsNorm rms_norm;
};

struct Case {
  std::string name;
  int64_t input_features;
  std::function<Operand(const Prologues&, const at::Tensor&)> operand;
  std::function<at::Tensor(const std::vector<at::Tensor>&, const at::Tensor&)> reference;  // of the norms' tensors
};

std::vector<Case> cases() {
  const auto activation = [](Activation function) {
    return [function](const Prologues&, const at::Tensor& x) { return activated(function, x); };
  };
  const auto plain = [](at::Tensor (*function)(const at::Tensor&)) {
    return [function](const std::vector<at::Tensor>&, const at::Tensor& x) { return function(x); };
  };
  return {
      {"tensor", kGroupIn, [](const Prologues&, const at::Tensor& x) { return Operand(x); },
       plain([](const at::Tensor& x) { return x; })},
      {"layer_norm", kGroupIn, [](const Prologues& p, const at::Tensor& x) { return p.layer_norm.before_linears(x); },
       [](const std::vector<at::Tensor>& norms, const at::Tensor& x) {
         return at::layer_norm(x, {kGroupIn}, norms[0], norms[1], kGroupEps);
       }},
      {"rms_norm", kGroupIn, [](const Prologues& p, const at::Tensor& x) { return p.rms_norm.before_linears(x); },
       [](const std::vector<at::Tensor>& norms, const at::Tensor& x) {
         return at::rms_norm(x, {kGroupIn}, norms[2], kGroupEps);
       }},
      {"gelu", kGroupIn, activation(Activation::kGelu), plain([](const at::Tensor& x) { return at::gelu(x); })},
      {"gelu_tanh", kGroupIn, activation(Activation::kGeluTanh),
       plain([](const at::Tensor& x) { return at::gelu(x, "tanh"); })},
      {"quick_gelu", kGroupIn, activation(Activation::kQuickGelu),
       plain([](const at::Tensor& x) { return x * at::sigmoid(1.702 * x); })},
      {"relu", kGroupIn, activation(Activation::kRelu), plain([](const at::Tensor& x) { return at::relu(x); })},
      {"gated", 2 * kGroupIn, [](const Prologues&, const at::Tensor& x) { return gated(x); },
       plain([](const at::Tensor& x) { return at::silu(x.narrow(1, 0, kGroupIn)) * x.narrow(1, kGroupIn, kGroupIn); })},
      {"gelu_gated", 2 * kGroupIn, [](const Prologues&, const at::Tensor& x) { return gelu_gated(x); },
       plain([](const at::Tensor& x) {
         return at::gelu(x.narrow(1, 0, kGroupIn), "tanh") * x.narrow(1, kGroupIn, kGroupIn);
       })},
  };
}

struct Adapters {
  std::string name;
  std::optional<LoraSettings> lora;
};

std::vector<Adapters> adapters() {
  return {{"trained", std::nullopt},
          {"lora", LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "k_proj", "v_proj"}}},
          {"lora_of_two", LoraSettings{.rank = 2, .alpha = 3, .target_modules = {"q_proj", "v_proj"}}},
          {"dora", LoraSettings{.rank = 2, .alpha = 3, .use_dora = true, .target_modules = {"q_proj", "v_proj"}}}};
}

class LinearsTest : public testing::TestWithParam<std::tuple<Case, Adapters, bool>> {
 protected:
  LinearsTest() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().normal_();
  }

  at::Tensor tensor_of(const std::string& name) const {
    for (const auto& parameter : store_.all()) {
      if (parameter.name == name) return parameter.tensor;
    }
    return {};
  }

  /// Of one Linear, by plain operations.
  at::Tensor reference_of(const std::string& path, const at::Tensor& x) const {
    const at::Tensor weight = tensor_of(path + ".weight"), bias = tensor_of(path + ".bias");
    const at::Tensor a = tensor_of(path + ".lora_A.weight"), b = tensor_of(path + ".lora_B.weight");
    if (!a.defined()) return at::linear(x, weight, bias);
    const at::Tensor sum = weight + store_.lora()->scale() * at::mm(b, a);
    const at::Tensor magnitude = tensor_of(path + ".lora_magnitude_vector");
    if (!magnitude.defined()) return at::linear(x, sum, bias);
    return at::linear(x, (magnitude / sum.detach().norm(2, {1})).unsqueeze(1) * sum, bias);
  }

  at::Tensor reference(const at::Tensor& x, const at::Tensor& residual) const {
    const at::Tensor value =
        std::get<0>(GetParam())
            .reference({tensor_of("layer_norm.weight"), tensor_of("layer_norm.bias"), tensor_of("rms_norm.weight")}, x);
    const at::Tensor y = at::cat(
        {reference_of("at.q_proj", value), reference_of("at.k_proj", value), reference_of("at.v_proj", value)}, 1);
    return residual.defined() ? y + residual : y;
  }

  ParameterStore store_{ParameterSettings{at::TensorOptions(at::kDouble), std::get<1>(GetParam()).lora}};
  const Prologues prologues_{store_};
  const Linears linears_{ParameterScope(store_, Component::kLanguageModel, "at"),
                         {"q_proj", "k_proj", "v_proj"},
                         kGroupIn,
                         kGroupOut,
                         std::get<2>(GetParam())};
};

TEST_P(LinearsTest, AreEachTheirProductWithWhatIsReadAndKeepItsInputs) {
  const auto& chosen = std::get<0>(GetParam());
  const at::Tensor x = at::randn({kGroupRows, chosen.input_features}, at::kDouble).set_requires_grad(true);
  for (const bool has_residual : {false, true}) {
    const at::Tensor residual =
        has_residual ? at::randn({kGroupRows, 18}, at::kDouble).set_requires_grad(true) : at::Tensor();
    const at::Tensor y = linears_(chosen.operand(prologues_, x), residual);
    const at::Tensor wanted = reference(x, residual);
    EXPECT_LT(relative_difference(y, wanted), 1e-13);

    std::vector<at::Tensor> of{x};
    if (has_residual) of.push_back(residual);
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) of.push_back(parameter.tensor);
    }
    const at::Tensor direction = at::randn_like(y);
    const auto gradients = [&](const at::Tensor& result) {
      return torch::autograd::grad({result}, of, {direction}, /*retain_graph=*/false, /*create_graph=*/false,
                                   /*allow_unused=*/true);
    };
    const auto found = gradients(y), expected = gradients(wanted);
    for (size_t i = 0; i < of.size(); ++i) {
      ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
      if (found[i].defined()) {
        EXPECT_LT(relative_difference(found[i], expected[i]), 1e-12) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LinearsTest,
                         testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(adapters()), testing::Bool()),
                         [](const auto& of) {
                           return std::get<0>(of.param).name + "_" + std::get<1>(of.param).name +
                                  (std::get<2>(of.param) ? "_bias" : "");
                         });

TEST(LinearsMemory, WeightsOfAGroupLieEndToEnd) {
  ParameterStore store(ParameterSettings{at::TensorOptions(at::kFloat),
                                         LoraSettings{.rank = 2, .target_modules = {"q_proj", "k_proj", "v_proj"}}});
  const Linears linears(ParameterScope(store, Component::kLanguageModel, "at"), {"q_proj", "k_proj", "v_proj"},
                        kGroupIn, kGroupOut, /*bias=*/true);
  const auto begin_of = [&](const std::string& name) {
    const auto found = std::ranges::find(store.all(), "at." + name, &Parameter::name);
    return found->tensor.data_ptr<float>();
  };
  const auto follows = [&](const std::string& first, const std::string& second) {
    const auto found = std::ranges::find(store.all(), "at." + first, &Parameter::name);
    return begin_of(first) + found->tensor.numel() == begin_of(second);
  };
  for (const std::string tensor : {".weight", ".bias", ".lora_A.weight"}) {
    EXPECT_TRUE(follows("q_proj" + tensor, "k_proj" + tensor)) << tensor;
    EXPECT_TRUE(follows("k_proj" + tensor, "v_proj" + tensor)) << tensor;
  }
}

/// Another place for one of the weights, as a shard of a block may have it.
TEST(LinearsMemory, WeightsThatLieApartGiveTheSame) {
  ParameterStore store{at::TensorOptions(at::kDouble)};
  const Linears linears(ParameterScope(store, Component::kLanguageModel, "at"), {"q_proj", "k_proj", "v_proj"},
                        kGroupIn, kGroupOut, /*bias=*/true);
  for (const auto& parameter : store.all()) parameter.tensor.detach().normal_();
  const at::Tensor x = at::randn({kGroupRows, kGroupIn}, at::kDouble).set_requires_grad(true);
  std::vector<at::Tensor> of{x};
  for (const auto& parameter : store.all()) of.push_back(parameter.tensor);
  const auto run = [&] {
    const at::Tensor y = linears(x);
    auto results = torch::autograd::grad({y}, of, {at::ones_like(y)});
    results.push_back(y);
    return results;
  };
  const auto together = run();
  for (const auto& parameter : store.all()) {
    if (parameter.name.find("k_proj") != std::string::npos) {
      at::Tensor tensor = parameter.tensor;
      tensor.set_data(tensor.detach().clone());
    }
  }
  const auto apart = run();
  for (size_t i = 0; i < together.size(); ++i) EXPECT_LT(relative_difference(apart[i], together[i]), 1e-13) << i;
}

}  // namespace
}  // namespace vlmtrain::nn

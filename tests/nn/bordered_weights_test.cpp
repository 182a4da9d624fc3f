#include "nn/layers/bordered_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <utility>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

constexpr int64_t kLinearRows = 40;
constexpr int64_t kLinearFeatures = 96;
/// Wide enough for a border of the gradient of gate and up.
constexpr int64_t kGateColumns = 1109;
constexpr int64_t kAdapterRank = 3;

TEST(BorderedWeightsTest, PlacesWeightsAndAdaptersInOneMatrix) {
  const auto options = at::TensorOptions(at::kFloat);
  const BorderedWeights weights({.in_features = 2, .out_features = {3, 1}, .ranks = {0, 1}, .column_alignment = 1},
                                /*has_weights=*/true, options);
  weights.weight_storage(0).fill_(1);
  weights.weight_storage(1).fill_(2);
  const LoraAdapter::Storage adapter = weights.adapter_storage(1);
  adapter.a.fill_(3);
  adapter.b.fill_(4);
  EXPECT_EQ(weights.border_columns(), align_width(1, options));
  EXPECT_EQ(weights.input_columns(), align_width(2, options));
  const auto take_used_columns = [&](const at::Tensor& matrix) {
    return at::cat({matrix.narrow(1, 0, 2), matrix.narrow(1, weights.input_columns(), 1)}, 1);
  };
  EXPECT_TRUE(at::equal(take_used_columns(weights.w_and_b()),
                        at::tensor({1, 1, 0, 1, 1, 0, 1, 1, 0, 2, 2, 4}, options).view({4, 3})));
  EXPECT_EQ(weights.w_and_b().count_nonzero().item<int64_t>(), 9);
  EXPECT_TRUE(at::equal(weights.w_and_a().narrow(1, 0, 2).narrow(0, 0, 5),
                        at::tensor({1, 1, 1, 1, 1, 1, 2, 2, 3, 3}, options).view({5, 2})));
  EXPECT_EQ(weights.w_and_a().count_nonzero().item<int64_t>(), 10);
}

struct BorderCase {
  std::string name;
  at::ScalarType dtype = at::kBFloat16;
  Quantization quantization = Quantization::kNone;
  double dropout = 0;
};

/// Queries, keys and a gated MLP that read norms, with adapters on all Linears but keys. Without
/// VLMTRAIN_ROW_ALIGNMENT, the adapters have storage of their own.
class BorderedLinears : public testing::TestWithParam<BorderCase> {
 protected:
  BorderedLinears() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) {
      const double deviation = parameter.sizes().size() == 2 ? 1 / std::sqrt(parameter.sizes()[1]) : 1;
      parameter.set_values(at::randn(parameter.sizes()).mul_(deviation));
    }
  }

  bool has_border() const { return align_width(1, options()) > 1; }
  at::TensorOptions options() const { return GetParam().dtype; }

  static LoraSettings make_lora() {
    return {.rank = kAdapterRank,
            .alpha = 2 * kAdapterRank,  // scaling by a power of two does not round
            .dropout = GetParam().dropout,
            .target_modules = {"q_proj", "gate_proj", "up_proj", "down_proj"}};
  }

  at::Tensor find(const std::string& name) const {
    for (const auto& parameter : store_.all()) {
      if (parameter.name == name) return parameter.quantized_weight ? parameter.values() : parameter.tensor;
    }
    return {};
  }

  std::vector<at::Tensor> collect_trained() const {
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  /// Gives each adapter storage of its own, as ShardedOptimizerSync does.
  void move_adapters() const {
    for (at::Tensor tensor : collect_trained()) tensor.set_data(tensor.detach().clone(at::MemoryFormat::Contiguous));
  }

  at::Tensor run(const at::Tensor& x) const {
    const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 5, .row_weight = 1}});
    const ResidualBranch branch = query_key_.forward_branch(norm_.make_linear_input(x));
    const at::Tensor stream = branch.stream + branch.value;
    return down_(swiglu(gate_up_(norm_.make_linear_input(stream))), stream);
  }

  /// Returns run() in fp64, from the same parameters.
  at::Tensor run_exact(const at::Tensor& x) const {
    const auto get = [&](const std::string& name) { return find(name).to(at::kDouble); };
    const auto apply = [&](const std::string& path, const at::Tensor& input) {
      at::Tensor weight = get(path + ".weight");
      if (find(path + ".lora_A.weight").defined())
        weight = weight + make_lora().scale() * at::mm(get(path + ".lora_B.weight"), get(path + ".lora_A.weight"));
      return at::linear(input, weight);
    };
    const auto normalize = [&](const at::Tensor& input) {
      return input * (input.square().mean(-1, true) + kNormEpsilon).rsqrt() * get("block.norm.weight");
    };
    const at::Tensor normed = normalize(x);
    const at::Tensor stream = x + at::cat({apply("block.q_proj", normed), apply("block.k_proj", normed)}, 1);
    const at::Tensor hidden = normalize(stream);
    return stream +
           apply("block.down_proj", at::silu(apply("block.gate_proj", hidden)) * apply("block.up_proj", hidden));
  }

  static constexpr double kNormEpsilon = 1e-6;
  ParameterStore store_{ParameterSettings{options(), make_lora(), GetParam().quantization}};
  const ParameterScope scope_{store_, Component::kLanguageModel, "block"};
  const RmsNorm norm_{scope_ / "norm", kLinearFeatures, kNormEpsilon};
  const MergedLinear query_key_{scope_,          {"q_proj", "k_proj"},
                                kLinearFeatures, {kLinearFeatures / 2, kLinearFeatures / 2},
                                /*bias=*/false,  OutputColumns::kStrided};
  const MergedLinear gate_up_{scope_,         {"gate_proj", "up_proj"}, kLinearFeatures, {kGateColumns, kGateColumns},
                              /*bias=*/false, OutputColumns::kAligned};
  const Linear down_{scope_ / "down_proj", kGateColumns, kLinearFeatures, /*bias=*/false};
  const at::Tensor x_ = at::randn({kLinearRows, kLinearFeatures}).to(GetParam().dtype).set_requires_grad(true);
  const at::Tensor gradient_ = at::randn({kLinearRows, kLinearFeatures}).to(GetParam().dtype);
};

TEST_P(BorderedLinears, MatchFp64WithGradients) {
  if (GetParam().dropout > 0) GTEST_SKIP() << "the reference has no dropout";
  std::vector<at::Tensor> inputs = collect_trained();
  inputs.push_back(x_);
  const auto actual = torch::autograd::grad({run(x_)}, inputs, {gradient_});
  const auto exact = torch::autograd::grad({run_exact(x_.to(at::kDouble))}, inputs, {gradient_.to(at::kDouble)});
  const at::Tensor exact_y = run_exact(x_.to(at::kDouble));
  // A handful of roundings, in bf16 to 8 bits.
  const double tolerance = GetParam().dtype == at::kDouble ? 1e-13 : 0.02;
  EXPECT_LT(relative_difference(run(x_).to(at::kDouble), exact_y), tolerance);
  for (size_t i = 0; i < inputs.size(); ++i)
    EXPECT_LT(relative_difference(actual[i].to(at::kDouble), exact[i].to(at::kDouble)), tolerance) << i;
}

TEST_P(BorderedLinears, MovedAdaptersGiveTheSameWithinRounding) {
  const auto compute = [&] {
    std::vector<at::Tensor> inputs = collect_trained();
    inputs.push_back(x_);
    const at::Tensor y = run(x_);
    auto results = torch::autograd::grad({y}, inputs, {gradient_});
    results.push_back(y.detach());
    return results;
  };
  // Dropout draws from the same streams again.
  const auto expected = compute();
  move_adapters();
  const auto moved = compute();
  const double tolerance = GetParam().dtype == at::kDouble ? 1e-13 : 0.03;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(relative_difference(moved[i], expected[i]), tolerance) << i;
}

TEST_P(BorderedLinears, RecomputationIsBitExact) {
  std::vector<at::Tensor> inputs = collect_trained();
  const auto parameters = inputs;
  inputs.push_back(x_);
  const at::Tensor y = run(x_);
  const at::Tensor checkpointed = run_checkpointed([this](const at::Tensor& x) { return run(x); }, x_, parameters);
  EXPECT_TRUE(at::equal(y, checkpointed));
  const auto expected = torch::autograd::grad({y}, inputs, {gradient_});
  const auto actual = torch::autograd::grad({checkpointed}, inputs, {gradient_});
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

/// One rounding instead of two: x Wᵀ is not rounded before h Bᵀ is added.
TEST_P(BorderedLinears, RoundResultsOnce) {
  if (!has_border() || GetParam().dtype == at::kDouble || GetParam().dropout > 0) GTEST_SKIP() << "without a border";
  const LinearInput input = norm_.make_linear_input(x_);
  const at::Tensor normed = input.value().to(at::kDouble);
  const at::Tensor hidden =
      (at::mm(normed, find("block.q_proj.lora_A.weight").to(at::kDouble).t()) * make_lora().scale())
          .to(GetParam().dtype)
          .to(at::kDouble);
  const at::Tensor exact = (at::mm(normed, find("block.q_proj.weight").to(at::kDouble).t()) +
                            at::mm(hidden, find("block.q_proj.lora_B.weight").to(at::kDouble).t()))
                               .detach();
  const auto compute_error = [&] {
    return (query_key_(input).narrow(1, 0, kLinearFeatures / 2).to(at::kDouble) - exact).norm().item<double>();
  };
  const double rounding = (exact.to(GetParam().dtype).to(at::kDouble) - exact).norm().item<double>();
  const double error = compute_error();
  // Sums in fp32 and hidden values near a midpoint add a little.
  EXPECT_LT(error, 1.05 * rounding);
  move_adapters();
  EXPECT_GT(compute_error(), 1.2 * rounding);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BorderedLinears,
                         testing::Values(BorderCase{.name = "fp64", .dtype = at::kDouble}, BorderCase{.name = "bf16"},
                                         BorderCase{.name = "fp16", .dtype = at::kHalf},
                                         BorderCase{.name = "bf16_dropout", .dropout = 0.25},
                                         BorderCase{.name = "bf16_nf4", .quantization = Quantization::kNf4},
                                         BorderCase{.name = "bf16_int8", .quantization = Quantization::kInt8}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace vlmtrain::nn

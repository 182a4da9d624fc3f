#include "vlmtrain/nn/mixers/gated_delta_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/delta_recurrence.h"
#include "parity/deviations.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kNetFeatures = 20;
constexpr double kGatedNormEpsilon = 1e-5;

/// A gated delta net in fp64 with random parameters and a convolution over GetParam() rows.
class GatedDeltaNetTest : public testing::TestWithParam<int64_t> {
 protected:
  GatedDeltaNetTest() {
    at::manual_seed(9);
    for (const Parameter& parameter : store_.all()) {
      const at::Tensor values = parameter.tensor.detach();
      values.copy_(at::randn(values.sizes(), values.options()) * 0.5);
      parameters_[parameter.name] = parameter.tensor;
    }
  }

  at::Tensor run(const at::Tensor& x, const Segments& segments) const {
    const auto layout =
        std::make_shared<const ChunkLayout>(ChunkLayout::make(segments, shape_.num_history_rows(), at::kCPU));
    return net_(x, layout).value.value();
  }

  at::Tensor get(const std::string& name) const { return parameters_.at("linear_attn." + name); }

  /// Computes the net row by row from its definition.
  at::Tensor run_reference(const at::Tensor& x, const std::vector<int64_t>& lengths) const {
    const at::Tensor gates = (-get("A_log").exp() * at::softplus(x.mm(get("in_proj_a.weight").t()) + get("dt_bias")));
    const at::Tensor beta = at::sigmoid(x.mm(get("in_proj_b.weight").t()));
    const at::Tensor projected = x.mm(get("in_proj_qkv.weight").t());
    const at::Tensor output_gate = x.mm(get("in_proj_z.weight").t()).view({x.size(0), -1, shape_.value_dim});
    const int64_t key_columns = shape_.key_heads * shape_.key_dim, ratio = shape_.value_heads / shape_.key_heads;
    const auto normalize = [](const at::Tensor& heads) {
      return heads * (heads.square().sum(-1, true) + 1e-6).rsqrt();
    };
    std::vector<at::Tensor> activated;
    int64_t first = 0;
    for (const int64_t length : lengths) {
      const at::Tensor before = at::zeros({shape_.num_history_rows(), projected.size(1)}, projected.options());
      const at::Tensor rows = at::cat({before, projected.narrow(0, first, length)});
      for (int64_t i = 0; i < length; ++i) {
        const at::Tensor window = rows.narrow(0, i, shape_.kernel_size);
        activated.push_back(at::silu((window.t() * get("conv1d.weight").squeeze(1)).sum(1)));
      }
      first += length;
    }
    const auto get_heads = [channels = at::stack(activated)](int64_t column, int64_t heads, int64_t head_dim) {
      return channels.narrow(1, column, heads * head_dim).unflatten(1, {heads, head_dim});
    };
    const at::Tensor query =
        normalize(get_heads(0, shape_.key_heads, shape_.key_dim)) / std::sqrt(static_cast<double>(shape_.key_dim));
    const at::Tensor key = normalize(get_heads(key_columns, shape_.key_heads, shape_.key_dim));
    const at::Tensor output =
        run_recurrence(RecurrenceInputs{query.repeat_interleave(ratio, 1), key.repeat_interleave(ratio, 1),
                                        get_heads(2 * key_columns, shape_.value_heads, shape_.value_dim), gates, beta},
                       lengths)
            .value;
    const at::Tensor normed =
        output * (output.square().mean(-1, true) + kGatedNormEpsilon).rsqrt() * get("norm.weight");
    return (normed * at::silu(output_gate)).flatten(1);
  }

  const GatedDeltaShape shape_{
      .key_heads = 2, .value_heads = 6, .key_dim = 8, .value_dim = 12, .kernel_size = GetParam()};
  ParameterStore store_{at::TensorOptions(at::kDouble)};
  const GatedDeltaNet net_{ParameterScope(store_, Component::kLanguageModel, "linear_attn"), kNetFeatures, shape_,
                           kGatedNormEpsilon};
  std::map<std::string, at::Tensor> parameters_;
};

TEST_P(GatedDeltaNetTest, EqualsItsDefinitionAndGradientsForPackedSegments) {
  const std::vector<int64_t> lengths{2, 70, 1, 64, 130};
  const Segments segments = Segments::from_lengths(lengths, at::kCPU);
  const at::Tensor x = at::randn({segments.rows, kNetFeatures}, at::kDouble).set_requires_grad(true);
  const at::Tensor actual = run(x, segments), expected = run_reference(x, lengths);
  EXPECT_LT(parity::relative_difference(actual, expected), 1e-12);

  std::vector<at::Tensor> inputs{x};
  std::vector<std::string> names{"x"};
  for (const auto& [name, parameter] : parameters_) {
    inputs.push_back(parameter);
    names.push_back(name);
  }
  const at::Tensor direction = at::randn_like(expected);
  const auto gradients = torch::autograd::grad({actual}, inputs, {direction});
  const auto expected_gradients = torch::autograd::grad({expected}, inputs, {direction});
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LT(parity::relative_difference(gradients[i], expected_gradients[i]), 1e-11) << names[i];
  }
}

TEST_P(GatedDeltaNetTest, GenerationContinuesFromTheStateOfThePrompts) {
  const at::NoGradGuard no_gradients;
  constexpr int64_t kSteps = 5;
  // One prompt is shorter than the rows that the convolution reads.
  const std::vector<int64_t> prompt_lengths{66, 2}, lengths{66 + kSteps, 2 + kSteps};
  const Segments prompts = Segments::from_lengths(prompt_lengths, at::kCPU);
  const at::Tensor x = at::randn({lengths[0] + lengths[1], kNetFeatures}, at::kDouble);
  const at::Tensor expected = run_reference(x, lengths);
  const auto layout = ChunkLayout::make(prompts, shape_.num_history_rows(), at::kCPU);
  DeltaNetState state;
  const at::Tensor prompt_rows =
      at::cat({x.narrow(0, 0, prompt_lengths[0]), x.narrow(0, lengths[0], prompt_lengths[1])});
  const at::Tensor output = net_.prefill(prompt_rows, layout, prompts, state).value.value();
  EXPECT_LT(
      parity::relative_difference(output.narrow(0, 0, prompt_lengths[0]), expected.narrow(0, 0, prompt_lengths[0])),
      1e-12);
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<int64_t> rows{prompt_lengths[0] + step, lengths[0] + prompt_lengths[1] + step};
    const at::Tensor next = net_.decode(at::stack({x[rows[0]], x[rows[1]]}), state).value.value();
    EXPECT_LT(parity::relative_difference(next, at::stack({expected[rows[0]], expected[rows[1]]})), 1e-12) << step;
  }
}

TEST_P(GatedDeltaNetTest, HasTheParametersOfTransformers) {
  const std::map<std::string, std::vector<int64_t>> expected{{"in_proj_qkv.weight", {104, kNetFeatures}},
                                                             {"in_proj_z.weight", {72, kNetFeatures}},
                                                             {"in_proj_b.weight", {6, kNetFeatures}},
                                                             {"in_proj_a.weight", {6, kNetFeatures}},
                                                             {"conv1d.weight", {104, 1, shape_.kernel_size}},
                                                             {"A_log", {6}},
                                                             {"dt_bias", {6}},
                                                             {"norm.weight", {12}}};
  EXPECT_EQ(parameters_.size(), expected.size());
  for (const auto& [name, sizes] : expected) EXPECT_EQ(get(name).sizes(), at::IntArrayRef(sizes)) << name;
}

INSTANTIATE_TEST_SUITE_P(KernelSizes, GatedDeltaNetTest, testing::Values(1, 4));

}  // namespace
}  // namespace vlmtrain::nn

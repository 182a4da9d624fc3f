#include "nn/mixers/delta_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <utility>
#include <vector>

#include "nn/delta_recurrence.h"
#include "nn/mixers/triangular_inverse.h"
#include "parity/deviations.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/mixers/chunk_layout.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 24;

/// Inputs of the delta rule for the rows of a stream: [rows, heads, features] and [rows, heads].
struct StreamInputs {
  at::Tensor query, key, value, log_decay, beta;

  std::vector<at::Tensor> all() const { return {query, key, value, log_decay, beta}; }
};

at::Tensor normalize(const at::Tensor& x) {
  return x / x.norm(2, -1, true);
}

/// The keys and gates of a test.
struct DeltaRuleCase {
  std::string name;
  double key_noise;   // 0: all keys of a head are equal
  double gate_shift;  // added to the logits of α and β

  friend void PrintTo(const DeltaRuleCase& value, std::ostream* out) { *out << value.name; }
};

StreamInputs make_inputs(int64_t rows, const DeltaRuleCase& test_case) {
  const auto type = at::kDouble;
  const at::Tensor direction = at::randn({1, kKeyHeads, kKeyDim}, type);
  StreamInputs inputs{.query = normalize(at::randn({rows, kKeyHeads, kKeyDim}, type)),
                      .key = normalize(direction + test_case.key_noise * at::randn({rows, kKeyHeads, kKeyDim}, type)),
                      .value = at::randn({rows, kValueHeads, kValueDim}, type),
                      .log_decay = at::log_sigmoid(at::randn({rows, kValueHeads}, type) + test_case.gate_shift),
                      .beta = at::sigmoid(at::randn({rows, kValueHeads}, type) + test_case.gate_shift)};
  return inputs;
}

/// Computes run_recurrence() with the key heads repeated for the value heads.
RecurrenceOutput run_recurrence(const StreamInputs& inputs, const std::vector<int64_t>& lengths) {
  const int64_t ratio = kValueHeads / kKeyHeads;
  return run_recurrence(
      RecurrenceInputs{inputs.query.repeat_interleave(ratio, 1), inputs.key.repeat_interleave(ratio, 1), inputs.value,
                       inputs.log_decay, inputs.beta},
      lengths);
}

/// Returns the rows of `x` in chunks, [chunks, heads, kChunkRows, …], in `type`.
at::Tensor to_chunks(const at::Tensor& x, const ChunkLayout& layout, at::ScalarType type, bool is_gate) {
  at::Tensor chunks = x.detach().to(type).index_select(0, layout.rows).unflatten(0, {layout.num_chunks, kChunkRows});
  if (is_gate) chunks = chunks * layout.is_row.to(type);
  return chunks.transpose(1, 2).contiguous();
}

at::Tensor to_rows(const at::Tensor& chunks, const ChunkLayout& layout) {
  return chunks.transpose(1, 2).flatten(0, 1).index_select(0, layout.slots);
}

DeltaRuleInputs to_chunks(const StreamInputs& inputs, const ChunkLayout& layout, at::ScalarType type) {
  return {to_chunks(inputs.query, layout, type, false), to_chunks(inputs.key, layout, type, false),
          to_chunks(inputs.value, layout, type, false), to_chunks(inputs.log_decay, layout, type, true),
          to_chunks(inputs.beta, layout, type, true)};
}

using DeltaRuleParam = std::tuple<DeltaRuleCase, at::ScalarType>;
class DeltaRuleTest : public testing::TestWithParam<DeltaRuleParam> {};

TEST_P(DeltaRuleTest, EqualsTheRecurrenceAndItsGradients) {
  const auto& [test_case, type] = GetParam();
  at::manual_seed(5);
  const std::vector<int64_t> lengths{1, 130, 63, 64, 65, 1000};
  const Segments segments = Segments::from_lengths(lengths, at::kCPU);
  const ChunkLayout layout = ChunkLayout::make(segments, /*num_history_rows=*/0, at::kCPU);
  StreamInputs inputs = make_inputs(segments.rows, test_case);
  for (const auto& input : inputs.all()) input.set_requires_grad(true);
  const auto [expected, expected_states] = run_recurrence(inputs, lengths);
  const at::Tensor direction = at::randn_like(expected);
  const auto expected_gradients = torch::autograd::grad({expected}, inputs.all(), {direction});

  const DeltaRuleInputs chunks = to_chunks(inputs, layout, type);
  const auto [output, states] = delta_rule(chunks, layout.chunks_per_step, /*with_states=*/true);
  // Errors of fp32 grow with the number of steps of the recurrence that the gates let through.
  const double tolerance = type == at::kDouble ? 1e-12 : 2e-6;
  EXPECT_LT(parity::relative_difference(to_rows(output, layout), expected), tolerance);
  EXPECT_LT(parity::relative_difference(states.index_select(0, layout.segment_order), expected_states), tolerance);

  const auto gradients = delta_rule_backward(
      chunks, layout.chunks_per_step, to_chunks(direction, layout, type, false) * layout.is_row.unsqueeze(1).to(type));
  const std::vector<at::Tensor> actual{gradients.query, gradients.key, gradients.value, gradients.log_decay,
                                       gradients.beta};
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT(parity::relative_difference(to_rows(actual[i], layout), expected_gradients[i]), 5 * tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Keys, DeltaRuleTest,
    testing::Combine(testing::Values(DeltaRuleCase{"unlike_keys", 10, 0}, DeltaRuleCase{"similar_keys", 0.3, 0},
                                     DeltaRuleCase{"equal_keys", 0, 0}, DeltaRuleCase{"gates_near_0", 1, -8},
                                     DeltaRuleCase{"gates_near_1", 1, 8}),
                     testing::Values(at::kFloat, at::kDouble)),
    [](const auto& param) {
      return std::get<0>(param.param).name + (std::get<1>(param.param) == at::kFloat ? "_fp32" : "_fp64");
    });

TEST(DeltaRule, StepsContinueTheChunks) {
  at::manual_seed(6);
  const std::vector<int64_t> lengths{70, 5};
  const Segments segments = Segments::from_lengths(lengths, at::kCPU);
  const ChunkLayout layout = ChunkLayout::make(segments, 0, at::kCPU);
  const DeltaRuleCase test_case{"", 1, 0};
  const StreamInputs prompt = make_inputs(segments.rows, test_case), next = make_inputs(2, test_case);
  const at::Tensor states = delta_rule(to_chunks(prompt, layout, at::kDouble), layout.chunks_per_step, true)
                                .states.index_select(0, layout.segment_order);
  const at::Tensor output = delta_rule_step({next.query, next.key, next.value, next.log_decay, next.beta}, states);

  for (int64_t i = 0; i < 2; ++i) {
    const int64_t first = i == 0 ? 0 : lengths[0], length = lengths[static_cast<size_t>(i)];
    const auto append = [&](const at::Tensor& rows, const at::Tensor& row) {
      return at::cat({rows.narrow(0, first, length), row.narrow(0, i, 1)});
    };
    const StreamInputs sequence{append(prompt.query, next.query), append(prompt.key, next.key),
                                append(prompt.value, next.value), append(prompt.log_decay, next.log_decay),
                                append(prompt.beta, next.beta)};
    const auto [expected, expected_state] = run_recurrence(sequence, {length + 1});
    EXPECT_LT(parity::relative_difference(output[i], expected[length]), 1e-12);
    EXPECT_LT(parity::relative_difference(states[i], expected_state[0]), 1e-12);
  }
}

TEST(DeltaRule, OtherSegmentsChangeNoBit) {
  at::manual_seed(7);
  const DeltaRuleCase test_case{"", 1, 0};
  const Segments segments = Segments::from_lengths({100, 30, 200}, at::kCPU);
  const ChunkLayout layout = ChunkLayout::make(segments, 0, at::kCPU);
  const StreamInputs inputs = make_inputs(segments.rows, test_case);
  StreamInputs changed = make_inputs(segments.rows, test_case);
  const std::vector<at::Tensor> original = inputs.all(), others = changed.all();
  for (size_t i = 0; i < original.size(); ++i) others[i].narrow(0, 100, 30).copy_(original[i].narrow(0, 100, 30));
  const auto run = [&](const StreamInputs& x) {
    const auto chunks = to_chunks(x, layout, at::kFloat);
    const at::Tensor output = delta_rule(chunks, layout.chunks_per_step, false).value;
    const auto gradients = delta_rule_backward(chunks, layout.chunks_per_step, output);
    std::vector<at::Tensor> results;
    for (const auto& result :
         {output, gradients.query, gradients.key, gradients.value, gradients.log_decay, gradients.beta}) {
      results.push_back(to_rows(result, layout).narrow(0, 100, 30));
    }
    return results;
  };
  const auto first = run(inputs), second = run(changed);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
}

TEST(TriangularInverse, BlocksAndRowsEqualTheInverseForAnyKeys) {
  at::manual_seed(8);
  for (const double noise : {10.0, 0.3, 0.0}) {
    const at::Tensor keys = normalize(at::ones({5, kChunkRows, kKeyDim}, at::kDouble) +
                                      noise * at::randn({5, kChunkRows, kKeyDim}, at::kDouble));
    const at::Tensor lower = at::matmul(keys, keys.mT()).tril(-1);
    const at::Tensor expected = (lower + at::eye(kChunkRows, at::kDouble)).inverse();
    const at::Tensor single = lower.to(at::kFloat);
    EXPECT_LT(parity::relative_difference(invert_unit_lower_by_blocks(lower), expected), 1e-13) << noise;
    EXPECT_LT(parity::relative_difference(invert_unit_lower(lower), expected), 1e-13) << noise;
    EXPECT_LT(parity::relative_difference(invert_unit_lower(single), expected), 1e-6) << noise;
    EXPECT_LT(parity::relative_difference(invert_unit_lower_by_blocks(single), expected), 1e-6) << noise;
  }
}

}  // namespace
}  // namespace vlmtrain::nn

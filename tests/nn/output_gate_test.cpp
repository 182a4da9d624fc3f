#include "vlmtrain/nn/attention/output_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "parity/deviations.h"

namespace vlmtrain::nn {
namespace {

TEST(OutputGate, EqualsItsDefinitionAndGradients) {
  at::manual_seed(10);
  constexpr int64_t kNumRows = 5;
  constexpr HeadShape kGatedHeads{.num_heads = 3, .num_key_value_heads = 1, .head_dim = 4};
  const at::Tensor x = at::randn({kNumRows, 8 * kGatedHeads.head_dim}, at::kDouble).set_requires_grad(true);
  const auto [qkv, gate] = split_output_gate(x, kGatedHeads);
  // Per head, the query is before the gate.
  const at::Tensor interleaved = x.narrow(1, 0, 24).view({kNumRows, 3, 8});
  const at::Tensor expected_query = interleaved.narrow(2, 0, 4).flatten(1);
  EXPECT_TRUE(qkv.equal(at::cat({expected_query, x.narrow(1, 24, 8)}, 1)));
  EXPECT_TRUE(gate.equal(interleaved.narrow(2, 4, 4).flatten(1)));

  const at::Tensor attended = qkv.narrow(1, 0, 12).square();
  const at::Tensor actual = at::cat({apply_output_gate(attended, gate).value(), qkv.narrow(1, 12, 8)}, 1);
  const at::Tensor expected =
      at::cat({expected_query.square() * at::sigmoid(interleaved.narrow(2, 4, 4).flatten(1)), x.narrow(1, 24, 8)}, 1);
  const at::Tensor direction = at::randn_like(expected);
  const auto gradient = torch::autograd::grad({actual}, {x}, {direction})[0];
  const auto expected_gradient = torch::autograd::grad({expected}, {x}, {direction})[0];
  EXPECT_LT(parity::relative_difference(actual, expected), 1e-14);
  EXPECT_LT(parity::relative_difference(gradient, expected_gradient), 1e-14);
}

}  // namespace
}  // namespace vlmtrain::nn

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "parity/deviations.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

/// Returns a random tensor [batch, rows, heads, head_dim].
at::Tensor make_random_rows(int64_t rows) {
  return at::randn({3, rows, 2, 8}).set_requires_grad(true);
}

at::Tensor compute_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias) {
  at::Tensor scores = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) / std::sqrt(8.0);
  if (bias.defined()) scores = scores + bias;
  return at::matmul(scores.softmax(-1), v.transpose(1, 2)).transpose(1, 2);
}

class BatchAttentionTest : public testing::TestWithParam<int64_t> {
 protected:
  BatchAttentionTest() { at::manual_seed(1); }

  static void expect_equal(const at::Tensor& actual, const at::Tensor& expected,
                           const std::vector<at::Tensor>& inputs) {
    EXPECT_LT(relative_difference(actual, expected), 1e-6);
    const auto direction = at::randn_like(actual);
    const auto actual_gradients = torch::autograd::grad({actual}, inputs, {direction});
    const auto expected_gradients = torch::autograd::grad({expected}, inputs, {direction});
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(relative_difference(actual_gradients[i], expected_gradients[i]), 2e-6) << i;
    }
  }

  const int64_t keys_ = GetParam();
  const at::Tensor q_ = make_random_rows(5), k_ = make_random_rows(keys_), v_ = make_random_rows(keys_);
};

TEST_P(BatchAttentionTest, WithoutBiasMatchesTheFormula) {
  expect_equal(batched_attention(q_, k_, v_), compute_reference(q_, k_, v_, {}), {q_, k_, v_});
}

TEST_P(BatchAttentionTest, WithBiasMatchesTheFormula) {
  for (const int64_t biases : {1, 3}) {
    const at::Tensor bias = at::randn({biases, 2, 5, keys_}).set_requires_grad(true);
    expect_equal(biased_attention(q_, k_, v_, bias), compute_reference(q_, k_, v_, bias), {q_, k_, v_, bias});
  }
}

INSTANTIATE_TEST_SUITE_P(Keys, BatchAttentionTest, testing::Values(2, 5, 70));

}  // namespace
}  // namespace vlmtrain::nn

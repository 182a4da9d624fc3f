#include "vlmtrain/nn/layers/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <tuple>

#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::nn {
namespace {

/// dtype, whether each operand is a transposed view, rows.
using Case = std::tuple<at::ScalarType, bool, bool, int64_t>;

class MatmulTest : public testing::TestWithParam<Case> {
 protected:
  static at::Tensor make_operand(int64_t rows, int64_t depth, bool is_transposed) {
    const auto dtype = std::get<0>(GetParam());
    return is_transposed ? at::randn({depth, rows}).to(dtype).t() : at::randn({rows, depth}).to(dtype);
  }
};

/// Sums in fp32, rounded once to the dtype.
TEST_P(MatmulTest, MatchesFp64RoundedOnce) {
  constexpr int64_t kDepth = 200, kOutputColumns = 33;
  const auto [dtype, first, second, rows] = GetParam();
  const at::Tensor a = make_operand(rows, kDepth, first), b = make_operand(kOutputColumns, kDepth, second);
  const at::Tensor actual = matmul_transposed(a, b);
  EXPECT_EQ(actual.scalar_type(), dtype);
  const at::Tensor double_a = a.to(at::kDouble), double_b = b.to(at::kDouble);
  const at::Tensor expected = at::matmul(double_a, double_b.t()),
                   magnitudes = at::matmul(double_a.abs(), double_b.abs().t());
  const double rounding = dtype == at::kFloat ? 0 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  // A sum of n terms has an error of at most n · 2⁻²⁴ of the sum of magnitudes.
  const at::Tensor tolerance = magnitudes * (static_cast<double>(kDepth) * 0x1p-24) + expected.abs() * rounding * 1.01;
  EXPECT_TRUE(((actual.to(at::kDouble) - expected).abs() <= tolerance).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Products, MatmulTest,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf), testing::Bool(),
                                          testing::Bool(), testing::Values(1, 15, 16, 70)));

TEST(MatmulBackendTest, DryRunSelectsTheSameBackend) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({64, 32}).to(dtype), b = at::randn({16, 32}).to(dtype);
    EXPECT_EQ(select_matmul_backend(a, b), select_matmul_backend(a.to(at::kMeta), b.to(at::kMeta)));
    EXPECT_EQ(select_matmul_backend(a, b), select_matmul_backend(a, b));
  }
}

TEST(MatmulBackendTest, AutotuningIsNotTracked) {
  const memory::HostMemoryBudget budget;
  static_cast<void>(
      select_matmul_backend(at::Tensor(at::randn({2, 2})).to(at::kHalf), at::randn({2, 2}).to(at::kHalf)));
  EXPECT_LT(budget.peak_bytes(), 1000);
}

}  // namespace
}  // namespace vlmtrain::nn

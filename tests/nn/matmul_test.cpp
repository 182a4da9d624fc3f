#include "vlmtrain/nn/layers/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

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

TEST(MatmulBackendTest, FollowsFromTheInstructionSet) {
  const auto select = [](at::ScalarType dtype, const char* max_isa) {
    static const std::set<std::string> kAllFlags{"sse4_1",      "avx",         "avx2",     "avx512bw", "avx512_vnni",
                                                 "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"};
    return select_matmul_backend(dtype, memory::derive_onednn_isa(kAllFlags, max_isa));
  };
  for (const char* isa : {"AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX"})
    EXPECT_EQ(select(at::kFloat, isa), MatmulBackend::kOneDnn) << isa;
  for (const char* isa : {"AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"})
    EXPECT_EQ(select(at::kBFloat16, isa), MatmulBackend::kFp32) << isa;
  for (const char* isa : {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX"})
    EXPECT_EQ(select(at::kBFloat16, isa), MatmulBackend::kAten) << isa;
  for (const char* isa : {"AVX2", "AVX512_CORE", "AVX512_CORE_BF16"})
    EXPECT_EQ(select(at::kHalf, isa), MatmulBackend::kFp32) << isa;
  for (const char* isa : {"AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16"})
    EXPECT_EQ(select(at::kHalf, isa), MatmulBackend::kAten) << isa;
}

}  // namespace
}  // namespace vlmtrain::nn

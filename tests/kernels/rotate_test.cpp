#include "vlmtrain/kernels/rotate.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

class RopeKernel : public EmulatedKernelTest {
 protected:
  /// 4 heads of queries, 2 of keys, 2 of values in the columns of x.
  static Heads split_heads(const at::Tensor& x, int64_t features) {
    const at::Tensor heads = x.unflatten(-1, {8, features});
    return {heads.narrow(1, 0, 4), heads.narrow(1, 4, 2), heads.narrow(1, 6, 2)};
  }

  static void compare(int64_t rows, int64_t features, at::ScalarType dtype, double direction) {
    at::manual_seed(features);
    const at::Tensor x = at::randn({rows, 8 * features}).to(dtype);
    const at::Tensor angles = at::randn({rows, 1, features / 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    const Heads input = split_heads(x, features);
    const at::Tensor rotated = at::empty({rows, 6, features}, x.options());
    const Heads output{rotated.narrow(1, 0, 4), rotated.narrow(1, 4, 2), at::empty({rows, 2, features}, x.options())};
    rope(output, input, cos, sin, direction);
    expect_close(output.query, reference::rope(input.query, cos, sin, direction));
    expect_close(output.key, reference::rope(input.key, cos, sin, direction));
    EXPECT_TRUE(at::equal(output.value, input.value));
  }
};

TEST_P(RopeKernel, MatchesAten) {
  for (const auto dtype : kTypes) {
    for (const int64_t features : {2, 10, 64, 80, 128, 256}) {
      compare(3, features, dtype, 1);
      compare(3, features, dtype, -1);
    }
  }
}

TEST_P(RopeKernel, InverseRotationIsGradient) {
  const at::Tensor x = at::randn({3, 8 * 64}), angles = at::randn({3, 1, 32});
  const at::Tensor rotated = at::empty_like(x), restored = at::empty_like(x);
  rope(split_heads(rotated, 64), split_heads(x, 64), angles.cos(), angles.sin(), 1);
  rope(split_heads(restored, 64), split_heads(rotated, 64), angles.cos(), angles.sin(), -1);
  expect_close(restored, x);
}

TEST_P(RopeKernel, AcceptsStridedRows) {
  const at::Tensor wide = at::randn({3, 8 * 64 + 5}), x = wide.narrow(1, 3, 8 * 64), angles = at::randn({3, 1, 32});
  const at::Tensor strided_output = at::empty_like(wide), dense_output = at::empty({3, 8 * 64});
  const Heads output = split_heads(strided_output.narrow(1, 3, 8 * 64), 64);
  rope(output, split_heads(x, 64), angles.cos(), angles.sin(), 1);
  rope(split_heads(dense_output, 64), split_heads(x.contiguous(), 64), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(strided_output.narrow(1, 3, 8 * 64), dense_output));
}

TEST_P(RopeKernel, LaunchesNothingForEmptyInput) {
  const at::Tensor empty = at::empty({0, 8 * 64});
  rope(split_heads(empty, 64), split_heads(empty, 64), at::empty({0, 1, 32}), at::empty({0, 1, 32}), 1);
}

TEST_P(RopeKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kFeatures = 128, kRows = (int64_t{1} << 31) / (8 * kFeatures) + 2;
  const at::Tensor x = reserve_tensor({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor result = reserve_tensor({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor cos = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor sin = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor row = at::randn({1, 8 * kFeatures}).to(at::kBFloat16), angles = at::randn({1, 1, kFeatures / 2});
  x.narrow(0, kRows - 1, 1).copy_(row);
  cos.narrow(0, kRows - 1, 1).copy_(angles.cos());
  sin.narrow(0, kRows - 1, 1).copy_(angles.sin());
  settings().last_blocks = 1;
  rope(split_heads(result, kFeatures), split_heads(x, kFeatures), cos, sin, 1);
  const at::Tensor expected = at::empty_like(row);
  rope(split_heads(expected, kFeatures), split_heads(row, kFeatures), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(result.narrow(0, kRows - 1, 1), expected));
}

INSTANTIATE_TEST_SUITE_P(Orders, RopeKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

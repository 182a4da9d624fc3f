#include "vlmtrain/kernels/rotate.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

class RotateKernel : public EmulatedKernels {
 protected:
  /// 4 heads of queries, 2 of keys, 2 of values in the columns of x.
  static Heads parts_of(const at::Tensor& x, int64_t features) {
    const at::Tensor heads = x.unflatten(-1, {8, features});
    return {heads.narrow(1, 0, 4), heads.narrow(1, 4, 2), heads.narrow(1, 6, 2)};
  }

  static void compare(int64_t rows, int64_t features, at::ScalarType dtype, double direction) {
    at::manual_seed(features);
    const at::Tensor x = at::randn({rows, 8 * features}).to(dtype);
    const at::Tensor angles = at::randn({rows, 1, features / 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    const Heads from = parts_of(x, features);
    const at::Tensor rotated = at::empty({rows, 6, features}, x.options());
    const Heads to{rotated.narrow(1, 0, 4), rotated.narrow(1, 4, 2), at::empty({rows, 2, features}, x.options())};
    rotate(to, from, cos, sin, direction);
    expect_close(to.query, reference::rotate(from.query, cos, sin, direction));
    expect_close(to.key, reference::rotate(from.key, cos, sin, direction));
    EXPECT_TRUE(at::equal(to.value, from.value));
  }
};

TEST_P(RotateKernel, ComputesWhatAtenDoes) {
  for (const auto dtype : kTypes) {
    for (const int64_t features : {2, 10, 64, 80, 128, 256}) {
      compare(3, features, dtype, 1);
      compare(3, features, dtype, -1);
    }
  }
}

TEST_P(RotateKernel, RotatingBackIsItsGradient) {
  const at::Tensor x = at::randn({3, 8 * 64}), angles = at::randn({3, 1, 32});
  const at::Tensor there = at::empty_like(x), back = at::empty_like(x);
  rotate(parts_of(there, 64), parts_of(x, 64), angles.cos(), angles.sin(), 1);
  rotate(parts_of(back, 64), parts_of(there, 64), angles.cos(), angles.sin(), -1);
  expect_close(back, x);
}

TEST_P(RotateKernel, RowsMayBeApart) {
  const at::Tensor wide = at::randn({3, 8 * 64 + 5}), x = wide.narrow(1, 3, 8 * 64), angles = at::randn({3, 1, 32});
  const at::Tensor of_wide = at::empty_like(wide), of_dense = at::empty({3, 8 * 64});
  const Heads to = parts_of(of_wide.narrow(1, 3, 8 * 64), 64);
  rotate(to, parts_of(x, 64), angles.cos(), angles.sin(), 1);
  rotate(parts_of(of_dense, 64), parts_of(x.contiguous(), 64), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(of_wide.narrow(1, 3, 8 * 64), of_dense));
}

TEST_P(RotateKernel, NoRowsAreNoLaunch) {
  const at::Tensor none = at::empty({0, 8 * 64});
  rotate(parts_of(none, 64), parts_of(none, 64), at::empty({0, 1, 32}), at::empty({0, 1, 32}), 1);
}

TEST_P(RotateKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kFeatures = 128, kRows = (int64_t{1} << 31) / (8 * kFeatures) + 2;
  const at::Tensor x = without_memory({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor result = without_memory({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor cos = without_memory({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor sin = without_memory({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor row = at::randn({1, 8 * kFeatures}).to(at::kBFloat16), angles = at::randn({1, 1, kFeatures / 2});
  x.narrow(0, kRows - 1, 1).copy_(row);
  cos.narrow(0, kRows - 1, 1).copy_(angles.cos());
  sin.narrow(0, kRows - 1, 1).copy_(angles.sin());
  settings().last_blocks = 1;
  rotate(parts_of(result, kFeatures), parts_of(x, kFeatures), cos, sin, 1);
  const at::Tensor wanted = at::empty_like(row);
  rotate(parts_of(wanted, kFeatures), parts_of(row, kFeatures), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(result.narrow(0, kRows - 1, 1), wanted));
}

INSTANTIATE_TEST_SUITE_P(Orders, RotateKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

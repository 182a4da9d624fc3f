#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::kernels {
namespace {

/// A value that no kernel writes.
constexpr double kUntouched = -96;

/// Rows with columns after them, which kernels must neither read nor write.
class BorderedRows : public EmulatedKernelTest {
 protected:
  struct Sizes {
    int64_t columns, border;
  };
  /// Whole packs, half packs, single elements, and more than a thread block.
  static constexpr Sizes kSizes[] = {{64, 16}, {60, 4}, {33, 3}, {64, 3}, {4096, 8}};

  /// Returns a copy of x with `border` columns of NaN after its rows.
  static at::Tensor add_border(const at::Tensor& x, int64_t border) {
    const at::Tensor wide = at::full({x.size(0), x.size(1) + border}, NAN, x.options());
    return wide.narrow(1, 0, x.size(1)).copy_(x);
  }

  static at::Tensor sample(int64_t rows, int64_t columns, at::ScalarType dtype) {
    return at::randn({rows, columns}).to(dtype);
  }

  /// Checks a result that must have `border` columns after its rows. Sums over a row differ in order
  /// between packs and single elements.
  static void expect_bordered(const at::Tensor& actual, const at::Tensor& expected, int64_t border) {
    expect_close(actual, expected, /*terms=*/4);
    EXPECT_EQ(actual.stride(0), expected.size(1) + border);
    EXPECT_EQ(actual.storage().nbytes(),
              static_cast<size_t>(actual.size(0) * actual.stride(0)) * actual.element_size());
  }
};

TEST_P(BorderedRows, NormEqualsDenseRows) {
  for (const auto dtype : kTypes) {
    for (const auto& [columns, border] : kSizes) {
      const at::Tensor x = sample(3, columns, dtype), gradient = sample(3, columns, dtype),
                       residual = sample(3, columns, dtype), bordered_x = add_border(x, border);
      for (const bool is_centered : {false, true}) {
        const NormParams params{.weight = at::randn({columns}).to(dtype),
                                .bias = is_centered ? at::randn({columns}).to(dtype) : at::Tensor(),
                                .is_centered = is_centered,
                                .eps = 1e-6};
        ASSERT_TRUE(can_run_norm(bordered_x, params));
        const NormResult dense = norm(x, params, residual);
        const NormResult bordered = norm(bordered_x, params, add_border(residual, border + 8), border);
        expect_bordered(bordered.value, dense.value, border);
        expect_close(bordered.statistics.rstd, dense.statistics.rstd, /*terms=*/4);
        expect_bordered(norm_backward(add_border(gradient, 8), bordered_x, bordered.statistics, params,
                                      add_border(residual, border)),
                        norm_backward(gradient, x, dense.statistics, params, residual), border);
      }
    }
  }
}

TEST_P(BorderedRows, ActivationEqualsDenseRows) {
  for (const auto dtype : kTypes) {
    for (const auto& [columns, border] : kSizes) {
      const at::Tensor x = sample(3, columns, dtype), gradient = sample(3, columns, dtype),
                       bordered_x = add_border(x, border);
      ASSERT_TRUE(can_run_activation(bordered_x));
      constexpr auto kFunction = ActivationFunction::kGeluTanh;
      expect_bordered(activate(x, kFunction, border), activate(x, kFunction), border);
      expect_bordered(activate(bordered_x, kFunction, border), activate(x, kFunction), border);
      const at::Tensor dx = activation_backward(gradient, x, kFunction);
      expect_bordered(activation_backward(gradient, bordered_x, kFunction), dx, border);
      expect_bordered(activation_backward(add_border(gradient, 8), x, kFunction), dx, 0);
    }
  }
}

TEST_P(BorderedRows, GatedActivationEqualsDenseRows) {
  for (const auto dtype : kTypes) {
    for (const auto& [columns, border] : kSizes) {
      const at::Tensor x = sample(3, 2 * columns, dtype), gradient = sample(3, columns, dtype),
                       bordered_x = add_border(x, border);
      ASSERT_TRUE(can_run_gated_activation(bordered_x));
      constexpr auto kActivation = GateActivation::kSilu;
      expect_bordered(gated_activation(x, kActivation, border), gated_activation(x, kActivation), border);
      expect_bordered(gated_activation(bordered_x, kActivation, border), gated_activation(x, kActivation), border);
      expect_bordered(gated_activation_backward(add_border(gradient, 8), bordered_x, kActivation),
                      gated_activation_backward(gradient, x, kActivation), border);
    }
  }
}

TEST_P(BorderedRows, GradientsOfNarrowSlicesAreDense) {
  const at::Tensor x = sample(3, 64, at::kFloat).narrow(1, 0, 16), gradient = sample(3, 16, at::kFloat);
  EXPECT_TRUE(activation_backward(gradient, x, ActivationFunction::kGelu).is_contiguous());
}

TEST_P(BorderedRows, AdamWWritesRowsOfTheWeightOnly) {
  const at::Tensor zero = at::zeros({});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& [columns, border] : kSizes) {
      const at::Tensor master = at::randn({9, columns}), gradient = at::randn({9, columns});
      const auto update = [&](const at::Tensor& weight) {
        const AdamWParameter parameter{.master = master.clone(),
                                       .gradient = gradient,
                                       .weight = weight,
                                       .steps = zero + 1,
                                       .moments = {at::zeros({9, columns}), at::zeros({9, columns})}};
        adamw({&parameter, 1},
              {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .skip_flag = zero});
      };
      const at::Tensor dense = at::empty({9, columns}, dtype);
      update(dense);
      const at::Tensor wide = at::full({9, columns + border}, kUntouched, dtype);
      update(wide.narrow(1, 0, columns));
      EXPECT_TRUE(at::equal(wide.narrow(1, 0, columns), dense)) << columns;
      EXPECT_TRUE(wide.narrow(1, columns, border).eq(kUntouched).all().item<bool>()) << columns;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, BorderedRows, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

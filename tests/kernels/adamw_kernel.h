#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/emulated.h"
#include "vlmtrain/kernels/adamw.h"

namespace vlmtrain::kernels {

inline int64_t count_blocks(int64_t count) {
  return (count + kMomentBlockSize - 1) / kMomentBlockSize;
}

inline at::Tensor scalar(double value) {
  return at::full({}, value, at::kFloat);
}

/// Returns 256 ascending values from `least` to 1, and their midpoints.
inline at::Tensor make_codes(double least) {
  return at::linspace(least, 1, kNumMomentCodes, at::kFloat);
}

/// Tests of the AdamW kernel, emulated.
class AdamWKernel : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static AdamWStep step() {
    AdamWStep step{.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1};
    step.skip_flag = scalar(0);
    step.divisor = scalar(2);
    step.code_values = at::stack({make_codes(-1), make_codes(0)});
    step.rounding_bounds =
        at::constant_pad_nd((step.code_values.slice(1, 0, -1) + step.code_values.slice(1, 1)) / 2, {0, 1}, INFINITY);
    step.seed = 7;
    return step;
  }

  static AdamWParameter make_parameter(int64_t count, at::ScalarType moments, at::ScalarType weight) {
    AdamWParameter parameter{
        .master = at::randn({count}), .gradient = at::randn({count}), .weight = {}, .steps = scalar(1)};
    if (weight != at::kFloat) parameter.weight = parameter.master.to(weight);
    for (size_t i = 0; i < 2; ++i) {
      if (moments == at::kFloat) {
        parameter.moments[i] = at::zeros({count});
      } else {
        parameter.moments[i] = at::zeros({count_blocks(count), kMomentBlockSize}, moments);
      }
      if (moments == at::kByte) parameter.absmax[i] = at::zeros({count_blocks(count)});
    }
    return parameter;
  }

  /// Checks that 8-bit moments are within half the distance of two codes, and bf16 moments within
  /// one unit in the last place.
  static void expect_moment(const AdamWParameter& parameter, size_t moment, const at::Tensor& exact,
                            const AdamWStep& step) {
    const at::Tensor error = (dequantize_moment(parameter, moment, step) - exact).abs();
    at::Tensor allowed = at::full_like(error, 1e-6);
    if (parameter.moments[moment].scalar_type() == at::kBFloat16) allowed += exact.abs() * 0x1p-7;
    if (parameter.moments[moment].scalar_type() == at::kByte) {
      const auto codes = step.code_values[static_cast<int64_t>(moment)];
      const double half = (codes[1] - codes[0]).item<double>() / 2;
      allowed += parameter.absmax[moment].repeat_interleave(kMomentBlockSize).narrow(0, 0, error.numel()) * half;
    }
    EXPECT_TRUE((error <= allowed).all().item<bool>()) << "moment " << moment << " of " << error.numel();
  }

  /// Returns the fp32 values of a moment.
  static at::Tensor dequantize_moment(const AdamWParameter& parameter, size_t moment, const AdamWStep& step) {
    const at::Tensor& stored = parameter.moments[moment];
    if (stored.scalar_type() != at::kByte)
      return stored.to(at::kFloat).reshape(-1).narrow(0, 0, parameter.master.numel());
    const at::Tensor codes =
        step.code_values[static_cast<int64_t>(moment)].index_select(0, stored.view(-1).to(at::kLong));
    return (codes.view(stored.sizes()) * parameter.absmax[moment].unsqueeze(1))
        .view(-1)
        .narrow(0, 0, parameter.master.numel());
  }
};

}  // namespace vlmtrain::kernels

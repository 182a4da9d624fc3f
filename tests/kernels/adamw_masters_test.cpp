// AdamW's kernel without fp32 masters: split and stochastic.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/adamw_kernel.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/split_master.h"

namespace vlmtrain::kernels {
namespace {

class AdamWKernelWithoutMasters : public AdamWKernel {};

/// Returns the fp32 values of split masters.
at::Tensor join_masters(const AdamWParameter& parameter) {
  const at::Tensor masters = at::empty({parameter.weight.numel()}, at::kFloat);
  const auto* const weights = static_cast<const uint16_t*>(parameter.weight.const_data_ptr());
  const auto* const low_bits = parameter.low_bits.const_data_ptr<int16_t>();
  for (int64_t i = 0; i < masters.numel(); ++i) {
    masters.mutable_data_ptr<float>()[i] = std::bit_cast<float>(join_master({weights[i], low_bits[i]}));
  }
  return masters;
}

/// Returns the parameter with masters that are split, in memory of its own.
AdamWParameter split(const AdamWParameter& parameter) {
  AdamWParameter result = parameter;
  result.master = at::Tensor();
  result.weight = parameter.weight.clone();
  // The low halves of little-endian fp32 numbers.
  result.low_bits = parameter.master.view(at::kShort).view({-1, 2}).select(1, 0).clone();
  for (size_t i = 0; i < 2; ++i) {
    result.moments[i] = parameter.moments[i].clone();
    if (parameter.absmax[i].defined()) result.absmax[i] = parameter.absmax[i].clone();
  }
  return result;
}

TEST_P(AdamWKernelWithoutMasters, SplitMastersEqualFp32Masters) {
  for (const auto moments : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const int64_t count : {1, 31, 256, 1003, 4097}) {
      AdamWParameter whole = make_parameter(count, moments, at::kBFloat16), halves = split(whole);
      for (int steps = 1; steps <= 3; ++steps) {
        whole.steps.fill_(steps);
        adamw(std::span(&whole, 1), step());
        adamw(std::span(&halves, 1), step());
        EXPECT_TRUE(at::equal(halves.weight, whole.weight)) << count;
        EXPECT_TRUE(at::equal(join_masters(halves), whole.master)) << count;
        for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(halves.moments[i], whole.moments[i])) << i;
      }
    }
  }
}

TEST_P(AdamWKernelWithoutMasters, SplitAndStochasticWeightsMayBeUnaligned) {
  for (const bool is_split : {true, false}) {
    AdamWParameter aligned = split(make_parameter(1000, at::kFloat, at::kBFloat16));
    if (!is_split) aligned.low_bits = at::Tensor();
    AdamWParameter unaligned = aligned;
    for (at::Tensor* tensor : {&unaligned.weight, &unaligned.low_bits, &unaligned.moments[0], &unaligned.moments[1]}) {
      if (tensor->defined()) *tensor = at::constant_pad_nd(*tensor, {1, 0}).narrow(0, 1, 1000);
    }
    adamw(std::span(&aligned, 1), step());
    adamw(std::span(&unaligned, 1), step());
    EXPECT_TRUE(at::equal(unaligned.weight, aligned.weight));
    EXPECT_TRUE(!is_split || at::equal(unaligned.low_bits, aligned.low_bits));
  }
}

TEST_P(AdamWKernelWithoutMasters, SkippedStepKeepsSplitAndStochasticWeights) {
  AdamWStep adamw_step = step();
  adamw_step.skip_flag = scalar(1);
  for (const bool is_split : {true, false}) {
    AdamWParameter parameter = split(make_parameter(700, at::kFloat, at::kBFloat16));
    const at::Tensor weight = parameter.weight.clone(), low_bits = parameter.low_bits.clone();
    if (!is_split) parameter.low_bits = at::Tensor();
    parameter.gradient.fill_(NAN);
    adamw(std::span(&parameter, 1), adamw_step);
    EXPECT_TRUE(at::equal(parameter.weight, weight));
    EXPECT_TRUE(!is_split || at::equal(parameter.low_bits, low_bits));
  }
}

TEST_P(AdamWKernelWithoutMasters, StochasticWeightsFollowFp32OnAverage) {
  constexpr int64_t kCount = 1 << 16;
  AdamWParameter whole = make_parameter(kCount, at::kFloat, at::kBFloat16);
  whole.weight.fill_(1.5);
  whole.master.fill_(1.5);
  whole.gradient.fill_(2);
  AdamWParameter rounded = split(whole);
  rounded.low_bits = at::Tensor();
  AdamWStep adamw_step = step();
  adamw_step.weight_decay = 0;
  adamw_step.learning_rate = 1e-3;  // a fourth of the distance of the numbers around 1.5 toward 0: 2⁻⁷ / 2
  adamw(std::span(&whole, 1), adamw_step);
  adamw(std::span(&rounded, 1), adamw_step);
  const at::Tensor values = rounded.weight.to(at::kDouble);
  EXPECT_EQ(values.max().item<double>(), 1.5);
  EXPECT_EQ(values.min().item<double>(), 1.5 - 0x1p-7);
  const double deviation = 0x1p-8 / std::sqrt(kCount);
  EXPECT_NEAR(values.mean().item<double>(), whole.master.to(at::kDouble).mean().item<double>(), 4 * deviation);
  // Another seed or tensor rounds other elements up; the same ones round the same.
  const auto rounds_equally = [&](uint64_t seed, uint32_t tensor_id) {
    AdamWParameter repeated = rounded;
    repeated.weight = at::full({kCount}, 1.5, at::kBFloat16);
    for (auto& moment : repeated.moments) moment = at::zeros({kCount});
    repeated.tensor_id = tensor_id;
    adamw_step.seed = seed;
    adamw(std::span(&repeated, 1), adamw_step);
    return at::equal(repeated.weight, rounded.weight);
  };
  EXPECT_TRUE(rounds_equally(7, 0));
  EXPECT_FALSE(rounds_equally(8, 0));
  EXPECT_FALSE(rounds_equally(7, 1));
}

TEST_P(AdamWKernelWithoutMasters, WithoutMastersOnlyDenseBf16WeightsAreUpdated) {
  AdamWParameter parameter = split(make_parameter(64, at::kFloat, at::kBFloat16));
  parameter.weight = parameter.weight.to(at::kHalf);
  EXPECT_THROW(adamw(std::span(&parameter, 1), step()), InternalError);
  parameter.weight = at::zeros({8, 16}, at::kBFloat16).narrow(1, 0, 8);
  EXPECT_THROW(adamw(std::span(&parameter, 1), step()), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Orders, AdamWKernelWithoutMasters, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

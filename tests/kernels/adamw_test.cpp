#include "vlmtrain/kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adamw_kernel.h"

namespace vlmtrain::kernels {
namespace {

/// AdamW in fp64 from the same initial moments.
struct ReferenceAdamW {
  ReferenceAdamW(const AdamWParameter& parameter, at::Tensor initial_mean, at::Tensor initial_square)
      : master(parameter.master.to(at::kDouble)),
        mean(initial_mean.to(at::kDouble)),
        square(initial_square.to(at::kDouble)) {}

  void update(const at::Tensor& gradient, const AdamWStep& step, double steps) {
    const at::Tensor g = gradient.to(at::kDouble) / step.divisor.to(at::kDouble);
    master = master * (1 - step.learning_rate * step.weight_decay);
    mean = mean * step.beta1 + g * (1 - step.beta1);
    square = square * step.beta2 + g.square() * (1 - step.beta2);
    const at::Tensor root = square.sqrt() / std::sqrt(1 - std::pow(step.beta2, steps)) + step.epsilon;
    master = master - mean / root * (step.learning_rate / (1 - std::pow(step.beta1, steps)));
  }

  at::Tensor master, mean, square;
};

constexpr at::ScalarType kMoments[] = {at::kFloat, at::kBFloat16, at::kByte};
constexpr at::ScalarType kWeights[] = {at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(AdamWKernel, MatchesFormulaFromStoredMoments) {
  for (const auto moments : kMoments) {
    for (const auto weight : kWeights) {
      const AdamWStep adamw_step = step();
      std::vector<AdamWParameter> parameters;
      for (const int64_t count : {1, 31, 256, 257, 4097}) parameters.push_back(make_parameter(count, moments, weight));
      for (int steps = 1; steps <= 3; ++steps) {
        std::vector<ReferenceAdamW> expected;
        for (const auto& parameter : parameters) {
          parameter.steps.fill_(steps);
          expected.emplace_back(parameter, dequantize_moment(parameter, 0, adamw_step),
                                dequantize_moment(parameter, 1, adamw_step));
          expected.back().update(parameter.gradient, adamw_step, steps);
        }
        adamw(parameters, adamw_step);
        for (size_t i = 0; i < parameters.size(); ++i) {
          expect_close(parameters[i].master, expected[i].master.to(at::kFloat));
          if (weight != at::kFloat) {
            EXPECT_TRUE(at::equal(parameters[i].weight, parameters[i].master.to(weight)));
          }
          expect_moment(parameters[i], 0, expected[i].mean, adamw_step);
          expect_moment(parameters[i], 1, expected[i].square, adamw_step);
        }
      }
    }
  }
}

/// Moments that equal a code or a bound, or are next to a bound, get the same code as by ATen.
TEST_P(AdamWKernel, EveryCodeBoundIsRespected) {
  AdamWStep adamw_step = step();
  adamw_step.beta1 = 0.5;
  adamw_step.beta2 = 0.75;
  adamw_step.code_values = adamw_step.code_values.pow(3);  // not evenly spaced, like bitsandbytes' codes
  const at::Tensor middles = (adamw_step.code_values.slice(1, 0, -1) + adamw_step.code_values.slice(1, 1)) / 2;
  adamw_step.rounding_bounds = at::constant_pad_nd(middles, {0, 1}, INFINITY);
  const at::Tensor infinity = at::full({}, INFINITY);
  for (int64_t moment = 0; moment < 2; ++moment) {
    const at::Tensor values =
        at::cat({adamw_step.code_values[moment], middles[moment], at::nextafter(middles[moment], infinity),
                 at::nextafter(middles[moment], -infinity)});
    // Each block begins with its maximum, 1, so that no value is scaled.
    constexpr int64_t kBlocks = 5, kRemaining = kMomentBlockSize - 1;
    const at::Tensor remaining = at::constant_pad_nd(values, {0, kBlocks * kRemaining - values.numel()});
    const at::Tensor means = at::cat({at::ones({kBlocks, 1}), remaining.view({kBlocks, kRemaining})}, 1).view(-1);
    AdamWParameter parameter = make_parameter(means.numel(), at::kByte, at::kFloat);
    // The first moments are a fourth of the gradients, the second ones a sixteenth of their
    // squares.
    parameter.gradient = moment == 0 ? means * 4 : means.clamp_min(0).sqrt() * 4;
    const at::Tensor halves = parameter.gradient / 2;
    const at::Tensor exact = moment == 0 ? halves * 0.5F : halves * 0.25F * halves;
    adamw(std::span(&parameter, 1), adamw_step);
    const auto index = static_cast<size_t>(moment);
    EXPECT_TRUE(at::equal(parameter.moments[index].view(-1),
                          at::bucketize(exact, middles[moment], /*out_int32=*/true).to(at::kByte)))
        << moment;
    EXPECT_TRUE(at::equal(parameter.absmax[index], at::ones({kBlocks})));
  }
}

/// Tensors that are not 16-byte aligned, as a shard of a weight may be.
TEST_P(AdamWKernel, HandlesUnalignedTensors) {
  for (const auto moments : kMoments) {
    at::manual_seed(2);
    AdamWParameter parameter = make_parameter(1000, moments, at::kBFloat16), aligned = parameter;
    const auto make_unaligned = [](const at::Tensor& padded) {
      return at::cat({at::zeros({1}, padded.options()), padded}).narrow(0, 1, padded.numel());
    };
    for (at::Tensor* tensor : {&parameter.master, &parameter.gradient, &parameter.weight})
      *tensor = make_unaligned(*tensor);
    if (moments == at::kFloat) {
      for (auto& moment : parameter.moments) moment = make_unaligned(moment);
    } else {
      for (size_t i = 0; i < 2; ++i) {
        parameter.moments[i] = parameter.moments[i].clone();
        if (moments == at::kByte) parameter.absmax[i] = parameter.absmax[i].clone();
      }
    }
    AdamWStep adamw_step = step();
    adamw_step.divisor = at::Tensor();
    adamw(std::span(&parameter, 1), adamw_step);
    adamw_step.divisor = scalar(1);
    adamw(std::span(&aligned, 1), adamw_step);
    EXPECT_TRUE(at::equal(parameter.master, aligned.master));
    EXPECT_TRUE(at::equal(parameter.weight, aligned.weight));
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(parameter.moments[i], aligned.moments[i])) << i;
  }
}

TEST_P(AdamWKernel, SkippedStepChangesNothing) {
  for (const auto moments : kMoments) {
    AdamWStep adamw_step = step();
    std::vector<AdamWParameter> parameters{make_parameter(700, moments, at::kBFloat16)};
    adamw(parameters, adamw_step);
    const auto snapshot = [&] {
      std::vector<at::Tensor> copies{parameters[0].master, parameters[0].weight, parameters[0].moments[0],
                                     parameters[0].moments[1]};
      if (moments == at::kByte) copies.insert(copies.end(), parameters[0].absmax.begin(), parameters[0].absmax.end());
      for (auto& copied : copies) copied = copied.clone();
      return copies;
    };
    const auto before = snapshot();
    adamw_step.skip_flag = scalar(1);
    parameters[0].gradient.fill_(NAN);
    adamw(parameters, adamw_step);
    const auto after = snapshot();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  }
}

TEST_P(AdamWKernel, ManyTensorsTakeSeveralLaunches) {
  std::vector<AdamWParameter> parameters;
  for (int i = 0; i < 2 * kMaxAdamWTensorsPerLaunch + 3; ++i)
    parameters.push_back(make_parameter(5 + i, at::kFloat, at::kBFloat16));
  std::vector<ReferenceAdamW> expected;
  for (const auto& parameter : parameters) {
    expected.emplace_back(parameter, parameter.moments[0], parameter.moments[1]);
    expected.back().update(parameter.gradient, step(), 1);
  }
  adamw(parameters, step());
  for (size_t i = 0; i < parameters.size(); ++i) expect_close(parameters[i].master, expected[i].master.to(at::kFloat));
}

TEST_P(AdamWKernel, Bf16RoundingIsStochastic) {
  constexpr int64_t kCount = 1 << 16;
  std::vector<AdamWParameter> parameters{make_parameter(kCount, at::kBFloat16, at::kFloat)};
  parameters[0].gradient.fill_(2.02);  // a tenth, 0.101 of a bf16 interval, is between two numbers
  AdamWStep adamw_step = step();
  adamw_step.divisor = scalar(2);
  adamw(parameters, adamw_step);
  const at::Tensor mean = dequantize_moment(parameters[0], 0, adamw_step).to(at::kDouble);
  const double gap = mean.max().item<double>() - mean.min().item<double>();
  EXPECT_GT(gap, 0);
  EXPECT_NEAR(mean.mean().item<double>(), 0.101, 4 * gap / 2 / std::sqrt(kCount));
  // Another seed or tensor rounds other elements up; the same ones round the same.
  const auto rounds_equally = [&](uint64_t seed, uint32_t tensor_id) {
    std::vector<AdamWParameter> repeated{make_parameter(kCount, at::kBFloat16, at::kFloat)};
    repeated[0].gradient.fill_(2.02);
    repeated[0].tensor_id = tensor_id;
    adamw_step.seed = seed;
    adamw(repeated, adamw_step);
    return at::equal(repeated[0].moments[0], parameters[0].moments[0]);
  };
  EXPECT_TRUE(rounds_equally(7, 0));
  EXPECT_FALSE(rounds_equally(8, 0));
  EXPECT_FALSE(rounds_equally(7, 1));
}

/// Elements of both moments round independently: two agree as often as two coins.
TEST_P(AdamWKernel, Bf16RoundsElementsIndependently) {
  constexpr int64_t kCount = 1 << 14;
  AdamWParameter parameter = make_parameter(kCount, at::kBFloat16, at::kFloat);
  AdamWStep adamw_step = step();
  adamw_step.beta1 = 0.5;
  adamw_step.beta2 = 0.75;
  adamw_step.divisor = scalar(1);
  // The mean, g/2, is halfway between two numbers of bf16; the square, g²/4, 0.44 of the way.
  parameter.gradient.fill_(1 + 7.5 / 128);
  adamw(std::span(&parameter, 1), adamw_step);
  const auto is_rounded_up = [&](size_t moment) {
    const at::Tensor values = dequantize_moment(parameter, moment, adamw_step);
    return values > values.min();
  };
  const auto agreement = [](const at::Tensor& a, const at::Tensor& b) {
    return (a == b).to(at::kDouble).mean().item<double>();
  };
  const at::Tensor mean = is_rounded_up(0), square = is_rounded_up(1);
  constexpr double kDeviation = 0.5 / 128;  // of the mean of 16,384 coin flips
  EXPECT_NEAR(agreement(mean, square), 0.5, 4 * kDeviation);
  for (const int64_t distance : {1, 2, 4, 8, 256}) {
    EXPECT_NEAR(agreement(mean.slice(0, distance), mean.slice(0, 0, -distance)), 0.5, 4 * kDeviation) << distance;
  }
}

TEST_P(AdamWKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 256;
  AdamWParameter small = make_parameter(256, at::kByte, at::kBFloat16), large = small;
  const auto embed_at_end = [](const at::Tensor& tail, int64_t count) {
    const at::Tensor padded = reserve_tensor({count}, tail.scalar_type());
    padded.narrow(0, count - tail.numel(), tail.numel()).copy_(tail.view(-1));
    return padded;
  };
  large.master = embed_at_end(small.master, kCount);
  large.gradient = embed_at_end(small.gradient, kCount);
  large.weight = embed_at_end(small.weight, kCount);
  for (size_t i = 0; i < 2; ++i) {
    large.moments[i] = embed_at_end(small.moments[i], kCount);
    large.absmax[i] = embed_at_end(small.absmax[i], kCount / kMomentBlockSize);
  }
  settings().max_trailing_blocks = 1;
  adamw(std::span(&large, 1), step());
  adamw(std::span(&small, 1), step());
  EXPECT_TRUE(at::equal(large.master.narrow(0, kCount - 256, 256), small.master));
  EXPECT_TRUE(at::equal(large.moments[1].narrow(0, kCount - 256, 256), small.moments[1].view(-1)));
}

INSTANTIATE_TEST_SUITE_P(Orders, AdamWKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

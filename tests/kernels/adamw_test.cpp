#include "vlmtrain/kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

int64_t blocks_of(int64_t count) {
  return (count + kMomentBlock - 1) / kMomentBlock;
}

at::Tensor scalar(double value) {
  return at::full({}, value, at::kFloat);
}

/// 256 ascending values from `least` to 1, and what lies halfway between them.
at::Tensor codes_from(double least) {
  return at::linspace(least, 1, kMomentCodes, at::kFloat);
}

class AdamWKernel : public EmulatedKernels {
 protected:
  void SetUp() override {
    EmulatedKernels::SetUp();
    at::manual_seed(1);
  }

  static AdamWStep step() {
    AdamWStep step{.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1};
    step.skipped = scalar(0);
    step.divisor = scalar(2);
    step.codes = at::stack({codes_from(-1), codes_from(0)});
    step.bounds = at::constant_pad_nd((step.codes.slice(1, 0, -1) + step.codes.slice(1, 1)) / 2, {0, 1}, INFINITY);
    step.seed = 7;
    return step;
  }

  static MovedTensor tensor(int64_t count, at::ScalarType moments, at::ScalarType weight) {
    MovedTensor moved{.master = at::randn({count}), .gradient = at::randn({count}), .weight = {}, .steps = scalar(1)};
    if (weight != at::kFloat) moved.weight = moved.master.to(weight);
    for (size_t i = 0; i < 2; ++i) {
      if (moments == at::kFloat) {
        moved.moments[i] = at::zeros({count});
      } else {
        moved.moments[i] = at::zeros({blocks_of(count), kMomentBlock}, moments);
      }
      if (moments == at::kByte) moved.absmax[i] = at::zeros({blocks_of(count)});
    }
    return moved;
  }

  /// 8 bits are within half of the distance between codes, bf16 within one of its steps, to either side.
  static void expect_held(const MovedTensor& moved, size_t moment, const at::Tensor& exact, const AdamWStep& step) {
    const at::Tensor off = (values_of(moved, moment, step) - exact).abs();
    at::Tensor allowed = at::full_like(off, 1e-6);
    if (moved.moments[moment].scalar_type() == at::kBFloat16) allowed += exact.abs() * 0x1p-7;
    if (moved.moments[moment].scalar_type() == at::kByte) {
      const auto codes = step.codes[static_cast<int64_t>(moment)];
      const double half = (codes[1] - codes[0]).item<double>() / 2;
      allowed += moved.absmax[moment].repeat_interleave(kMomentBlock).narrow(0, 0, off.numel()) * half;
    }
    EXPECT_TRUE((off <= allowed).all().item<bool>()) << "moment " << moment << " of " << off.numel();
  }

  /// The fp32 values that a moment stands for.
  static at::Tensor values_of(const MovedTensor& moved, size_t moment, const AdamWStep& step) {
    const at::Tensor& held = moved.moments[moment];
    if (held.scalar_type() != at::kByte) return held.to(at::kFloat).reshape(-1).narrow(0, 0, moved.master.numel());
    const at::Tensor codes = step.codes[static_cast<int64_t>(moment)].index_select(0, held.view(-1).to(at::kLong));
    return (codes.view(held.sizes()) * moved.absmax[moment].unsqueeze(1)).view(-1).narrow(0, 0, moved.master.numel());
  }
};

/// In fp64, from the same moments.
struct Exact {
  Exact(const MovedTensor& moved, at::Tensor mean, at::Tensor square)
      : master(moved.master.to(at::kDouble)), first(mean.to(at::kDouble)), second(square.to(at::kDouble)) {}

  void move(const at::Tensor& gradient, const AdamWStep& step, double steps) {
    const at::Tensor g = gradient.to(at::kDouble) / step.divisor.to(at::kDouble);
    master = master * (1 - step.learning_rate * step.weight_decay);
    first = first * step.beta1 + g * (1 - step.beta1);
    second = second * step.beta2 + g.square() * (1 - step.beta2);
    const at::Tensor root = second.sqrt() / std::sqrt(1 - std::pow(step.beta2, steps)) + step.epsilon;
    master = master - first / root * (step.learning_rate / (1 - std::pow(step.beta1, steps)));
  }

  at::Tensor master, first, second;
};

constexpr at::ScalarType kMoments[] = {at::kFloat, at::kBFloat16, at::kByte};
constexpr at::ScalarType kWeights[] = {at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(AdamWKernel, MovesAsTheFormulaDoesFromTheMomentsThatAreHeld) {
  for (const auto moments : kMoments) {
    for (const auto weight : kWeights) {
      const AdamWStep now = step();
      std::vector<MovedTensor> tensors;
      for (const int64_t count : {1, 31, 256, 257, 4097}) tensors.push_back(tensor(count, moments, weight));
      for (int steps = 1; steps <= 3; ++steps) {
        std::vector<Exact> wanted;
        for (const auto& moved : tensors) {
          moved.steps.fill_(steps);
          wanted.emplace_back(moved, values_of(moved, 0, now), values_of(moved, 1, now));
          wanted.back().move(moved.gradient, now, steps);
        }
        adamw(tensors, now);
        for (size_t i = 0; i < tensors.size(); ++i) {
          expect_close(tensors[i].master, wanted[i].master.to(at::kFloat));
          if (weight != at::kFloat) {
            EXPECT_TRUE(at::equal(tensors[i].weight, tensors[i].master.to(weight)));
          }
          expect_held(tensors[i], 0, wanted[i].first, now);
          expect_held(tensors[i], 1, wanted[i].second, now);
        }
      }
    }
  }
}

/// Moments that are a code, or lie at a bound of two, or next to it, get ATen's code of them.
TEST_P(AdamWKernel, EveryBoundOfCodesIsFound) {
  AdamWStep now = step();
  now.beta1 = 0.5;
  now.beta2 = 0.75;
  now.codes = now.codes.pow(3);  // not evenly spaced, as bitsandbytes' are not
  const at::Tensor middles = (now.codes.slice(1, 0, -1) + now.codes.slice(1, 1)) / 2;
  now.bounds = at::constant_pad_nd(middles, {0, 1}, INFINITY);
  const at::Tensor infinity = at::full({}, INFINITY);
  for (int64_t moment = 0; moment < 2; ++moment) {
    const at::Tensor values = at::cat({now.codes[moment], middles[moment], at::nextafter(middles[moment], infinity),
                                       at::nextafter(middles[moment], -infinity)});
    // In blocks whose first value is the largest, 1, so that none is scaled.
    constexpr int64_t kBlocks = 5, kOthers = kMomentBlock - 1;
    const at::Tensor others = at::constant_pad_nd(values, {0, kBlocks * kOthers - values.numel()});
    const at::Tensor means = at::cat({at::ones({kBlocks, 1}), others.view({kBlocks, kOthers})}, 1).view(-1);
    MovedTensor moved = tensor(means.numel(), at::kByte, at::kFloat);
    // First moments are a quarter of the gradients; second ones a sixteenth of their squares.
    moved.gradient = moment == 0 ? means * 4 : means.clamp_min(0).sqrt() * 4;
    const at::Tensor halves = moved.gradient / 2;
    const at::Tensor exact = moment == 0 ? halves * 0.5F : halves * 0.25F * halves;
    adamw(std::span(&moved, 1), now);
    const auto held = static_cast<size_t>(moment);
    EXPECT_TRUE(at::equal(moved.moments[held].view(-1),
                          at::bucketize(exact, middles[moment], /*out_int32=*/true).to(at::kByte)))
        << moment;
    EXPECT_TRUE(at::equal(moved.absmax[held], at::ones({kBlocks})));
  }
}

/// Where a tensor does not begin at 16 bytes, as a piece of a weight that several ranks share may not.
TEST_P(AdamWKernel, MovesWhatIsNotAligned) {
  for (const auto moments : kMoments) {
    at::manual_seed(2);
    MovedTensor moved = tensor(1000, moments, at::kBFloat16), aligned = moved;
    const auto shifted = [](const at::Tensor& whole) {
      return at::cat({at::zeros({1}, whole.options()), whole}).narrow(0, 1, whole.numel());
    };
    for (at::Tensor* each : {&moved.master, &moved.gradient, &moved.weight}) *each = shifted(*each);
    if (moments == at::kFloat) {
      for (auto& moment : moved.moments) moment = shifted(moment);
    } else {
      for (size_t i = 0; i < 2; ++i) {
        moved.moments[i] = moved.moments[i].clone();
        if (moments == at::kByte) moved.absmax[i] = moved.absmax[i].clone();
      }
    }
    AdamWStep now = step();
    now.divisor = at::Tensor();
    adamw(std::span(&moved, 1), now);
    now.divisor = scalar(1);
    adamw(std::span(&aligned, 1), now);
    EXPECT_TRUE(at::equal(moved.master, aligned.master));
    EXPECT_TRUE(at::equal(moved.weight, aligned.weight));
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(moved.moments[i], aligned.moments[i])) << i;
  }
}

TEST_P(AdamWKernel, ASkippedStepChangesNoBit) {
  for (const auto moments : kMoments) {
    AdamWStep now = step();
    std::vector<MovedTensor> tensors{tensor(700, moments, at::kBFloat16)};
    adamw(tensors, now);
    const auto copy = [&] {
      std::vector<at::Tensor> all{tensors[0].master, tensors[0].weight, tensors[0].moments[0], tensors[0].moments[1]};
      if (moments == at::kByte) all.insert(all.end(), tensors[0].absmax.begin(), tensors[0].absmax.end());
      for (auto& each : all) each = each.clone();
      return all;
    };
    const auto before = copy();
    now.skipped = scalar(1);
    tensors[0].gradient.fill_(NAN);
    adamw(tensors, now);
    const auto after = copy();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  }
}

TEST_P(AdamWKernel, ManyTensorsTakeSeveralLaunches) {
  std::vector<MovedTensor> tensors;
  for (int i = 0; i < 2 * kMostAdamWTensors + 3; ++i) tensors.push_back(tensor(5 + i, at::kFloat, at::kBFloat16));
  std::vector<Exact> wanted;
  for (const auto& moved : tensors) {
    wanted.emplace_back(moved, moved.moments[0], moved.moments[1]);
    wanted.back().move(moved.gradient, step(), 1);
  }
  adamw(tensors, step());
  for (size_t i = 0; i < tensors.size(); ++i) expect_close(tensors[i].master, wanted[i].master.to(at::kFloat));
}

TEST_P(AdamWKernel, Bf16RoundsUpWithTheProbabilityOfWhatIsCutOff) {
  constexpr int64_t kCount = 1 << 16;
  std::vector<MovedTensor> tensors{tensor(kCount, at::kBFloat16, at::kFloat)};
  tensors[0].gradient.fill_(2.02);  // of which a tenth, 0.101, lies between two numbers of bf16
  AdamWStep now = step();
  now.divisor = scalar(2);
  adamw(tensors, now);
  const at::Tensor mean = values_of(tensors[0], 0, now).to(at::kDouble);
  const double gap = mean.max().item<double>() - mean.min().item<double>();
  EXPECT_GT(gap, 0);
  EXPECT_NEAR(mean.mean().item<double>(), 0.101, 4 * gap / 2 / std::sqrt(kCount));
  // Another seed, or tensor, rounds others up; the same the same.
  const auto again = [&](uint64_t seed, uint32_t number) {
    std::vector<MovedTensor> other{tensor(kCount, at::kBFloat16, at::kFloat)};
    other[0].gradient.fill_(2.02);
    other[0].number = number;
    now.seed = seed;
    adamw(other, now);
    return at::equal(other[0].moments[0], tensors[0].moments[0]);
  };
  EXPECT_TRUE(again(7, 0));
  EXPECT_FALSE(again(8, 0));
  EXPECT_FALSE(again(7, 1));
}

/// Each element of each moment is rounded by bits of its own: as often alike as two coins fall.
TEST_P(AdamWKernel, Bf16RoundsNeighboursAndMomentsApart) {
  constexpr int64_t kCount = 1 << 14;
  MovedTensor moved = tensor(kCount, at::kBFloat16, at::kFloat);
  AdamWStep now = step();
  now.beta1 = 0.5;
  now.beta2 = 0.75;
  now.divisor = scalar(1);
  // The mean, g/2, lies halfway between two numbers of bf16, and the square, g²/4, 0.44 of the way.
  moved.gradient.fill_(1 + 7.5 / 128);
  adamw(std::span(&moved, 1), now);
  const auto is_up = [&](size_t moment) {
    const at::Tensor values = values_of(moved, moment, now);
    return values > values.min();
  };
  const auto alike = [](const at::Tensor& a, const at::Tensor& b) {
    return (a == b).to(at::kDouble).mean().item<double>();
  };
  const at::Tensor mean = is_up(0), square = is_up(1);
  constexpr double kDeviation = 0.5 / 128;  // of the mean of 16,384 coins
  EXPECT_NEAR(alike(mean, square), 0.5, 4 * kDeviation);
  for (const int64_t apart : {1, 2, 4, 8, 256}) {
    EXPECT_NEAR(alike(mean.slice(0, apart), mean.slice(0, 0, -apart)), 0.5, 4 * kDeviation) << apart;
  }
}

TEST_P(AdamWKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 256;
  MovedTensor small = tensor(256, at::kByte, at::kBFloat16), large = small;
  const auto behind = [](const at::Tensor& tail, int64_t count) {
    const at::Tensor whole = without_memory({count}, tail.scalar_type());
    whole.narrow(0, count - tail.numel(), tail.numel()).copy_(tail.view(-1));
    return whole;
  };
  large.master = behind(small.master, kCount);
  large.gradient = behind(small.gradient, kCount);
  large.weight = behind(small.weight, kCount);
  for (size_t i = 0; i < 2; ++i) {
    large.moments[i] = behind(small.moments[i], kCount);
    large.absmax[i] = behind(small.absmax[i], kCount / kMomentBlock);
  }
  settings().last_blocks = 1;
  adamw(std::span(&large, 1), step());
  adamw(std::span(&small, 1), step());
  EXPECT_TRUE(at::equal(large.master.narrow(0, kCount - 256, 256), small.master));
  EXPECT_TRUE(at::equal(large.moments[1].narrow(0, kCount - 256, 256), small.moments[1].view(-1)));
}

INSTANTIATE_TEST_SUITE_P(Orders, AdamWKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

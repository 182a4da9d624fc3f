#include "vlmtrain/kernels/dropout.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "kernels/emulated.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {
namespace {

using Streams = std::vector<DropoutStream>;

class DropoutKernel : public EmulatedKernelTest {
 protected:
  static constexpr double kProbability = 0.3;

  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static at::Tensor apply_dropout(const at::Tensor& x, int64_t num_consumers, const Streams& streams,
                                  double probability = kProbability) {
    at::Tensor result = at::empty({num_consumers, x.size(0), x.size(1)}, x.options());
    dropout(result, x, {.probability = probability, .streams = streams});
    return result;
  }

  /// Returns the mask for ones: bool [readers, rows, columns].
  static at::Tensor keep_mask(int64_t num_consumers, int64_t rows, int64_t columns, const Streams& streams,
                              double probability = kProbability) {
    return apply_dropout(at::ones({rows, columns}), num_consumers, streams, probability).ne(0);
  }

  /// Returns five standard deviations of the mean of so many draws.
  static double compute_tolerance(double probability, int64_t draws) {
    return 5 * std::sqrt(probability * (1 - probability) / static_cast<double>(draws));
  }
};

/// Known answers of the paper's code (Random123, kat_vectors).
TEST(PhiloxTest, MatchesKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(reference::philox({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference::philox({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(reference::philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_P(DropoutKernel, MatchesAtenForwardAndBackward) {
  const Streams streams{{.key = 7, .first_row = 0}, {.key = uint64_t{8} << 32, .first_row = 2}};
  const DropoutParams params{.probability = kProbability, .streams = streams};
  for (const int64_t num_consumers : {1, 3}) {
    for (const auto dtype : kTypes) {
      for (const int64_t columns : kOddColumns) {
        const at::Tensor x = at::randn({3, columns}).to(dtype), sum = at::randn({3, columns}).to(dtype);
        const at::Tensor reader_values = at::randn({num_consumers, 3, columns}).to(dtype);
        const at::Tensor masks = reference::make_dropout_masks(x, num_consumers, params);
        expect_close(apply_dropout(x, num_consumers, streams), reference::dropout(x, masks, kProbability));
        const at::Tensor actual = sum.clone();
        dropout_backward(actual, reader_values, params);
        expect_close(actual, reference::dropout_backward(sum, reader_values, masks, kProbability), num_consumers + 1.0);
      }
    }
  }
}

TEST_P(DropoutKernel, PackedAndScalarPathsAgree) {
  const Streams streams{{.key = 7, .first_row = 0}};
  const DropoutParams params{.probability = kProbability, .streams = streams};
  const auto make_misaligned = [](const at::Tensor& x) {  // begins within a pack
    return at::empty({x.numel() + 1}, x.options()).narrow(0, 1, x.numel()).view(x.sizes()).copy_(x);
  };
  for (const auto dtype : kTypes) {
    const at::Tensor x = at::randn({2, 72}).to(dtype), reader_values = at::randn({2, 2, 72}).to(dtype);
    EXPECT_TRUE(at::equal(apply_dropout(make_misaligned(x), 2, streams), apply_dropout(x, 2, streams)));
    const at::Tensor sum = x.clone(), other_sum = make_misaligned(x);
    dropout_backward(sum, reader_values, params);
    dropout_backward(other_sum, reader_values, params);
    EXPECT_TRUE(at::equal(other_sum, sum));
  }
}

TEST_P(DropoutKernel, IsIndependentOfRowPosition) {
  const DropoutStream a{.key = 1, .first_row = 0};
  const auto make_streams = [&](int64_t row) { return Streams{a, {.key = 2, .first_row = row}}; };
  const at::Tensor keep_both = keep_mask(2, 7, 20, make_streams(3));
  EXPECT_TRUE(at::equal(keep_both.narrow(1, 0, 3), keep_mask(2, 3, 20, {a})));
  EXPECT_TRUE(at::equal(keep_both.narrow(1, 3, 4), keep_mask(2, 4, 20, {{.key = 2, .first_row = 0}})));
  EXPECT_TRUE(at::equal(keep_both.narrow(1, 3, 4), keep_mask(2, 5, 20, make_streams(1)).narrow(1, 1, 4)));
  // Fewer readers and columns have a part of the same mask.
  EXPECT_TRUE(at::equal(keep_both.narrow(0, 0, 1).narrow(2, 0, 9), keep_mask(1, 7, 9, make_streams(3))));
}

TEST_P(DropoutKernel, SplitsManyStreamsIntoLaunches) {
  constexpr int64_t kStreams = 2 * kMaxDropoutStreamsPerLaunch + 3, kColumns = 16;
  Streams streams;
  for (int64_t i = 0; i < kStreams; ++i) streams.push_back({.key = 100 + static_cast<uint64_t>(i), .first_row = 2 * i});
  const at::Tensor x = at::ones({2 * kStreams, kColumns});
  const DropoutParams params{.probability = kProbability, .streams = streams};
  const at::Tensor masks = reference::make_dropout_masks(x, 2, params);
  EXPECT_TRUE(at::equal(apply_dropout(x, 2, streams).ne(0), masks.ne(0)));
  const at::Tensor sum = at::zeros_like(x), reader_values = at::ones({2, 2 * kStreams, kColumns});
  dropout_backward(sum, reader_values, params);
  expect_close(sum, reference::dropout_backward(at::zeros_like(x), reader_values, masks, kProbability), 2);
}

TEST_P(DropoutKernel, StreamsWithoutRowsAreIgnored) {
  const Streams streams{{.key = 1, .first_row = 0}, {.key = 2, .first_row = 0}, {.key = 3, .first_row = 4}};
  EXPECT_TRUE(at::equal(keep_mask(1, 4, 20, streams), keep_mask(1, 4, 20, {{.key = 2, .first_row = 0}})));
}

TEST_P(DropoutKernel, DropRateMatchesProbabilityByRowAndColumn) {
  constexpr int64_t kRows = 200, kColumns = 200;
  for (const double probability : {0.05, 0.5, 0.9}) {
    const at::Tensor drop_mask =
        keep_mask(1, kRows, kColumns, {{.key = 1, .first_row = 0}}, probability)[0].logical_not().to(at::kDouble);
    const double mean = drop_mask.mean().item<double>();
    EXPECT_NEAR(mean, probability, compute_tolerance(probability, drop_mask.numel()));
    // Means of rows and columns must scatter like those of independent draws: the variance of n
    // means is chi-squared distributed, with a relative standard deviation of √(2 / n).
    for (const int64_t dimension : {0, 1}) {
      const double expected = probability * (1 - probability) / static_cast<double>(kRows);
      const double variance = (drop_mask.mean(dimension) - probability).square().mean().item<double>();
      EXPECT_NEAR(variance / expected, 1, 5 * std::sqrt(2.0 / kRows)) << probability << ", " << dimension;
    }
  }
}

/// Two independent masks agree in 0.7² + 0.3² of the elements.
TEST_P(DropoutKernel, ReadersStreamsRowsAndColumnsAreIndependent) {
  constexpr double kAgree = 0.7 * 0.7 + 0.3 * 0.3;
  const at::Tensor first = keep_mask(3, 128, 128, {{.key = 1, .first_row = 0}});
  const at::Tensor second = keep_mask(3, 128, 128, {{.key = 2, .first_row = 0}});
  const auto expect_independent = [&](const at::Tensor& a, const at::Tensor& b, const char* dimension_name) {
    EXPECT_NEAR(a.eq(b).to(at::kDouble).mean().item<double>(), kAgree, compute_tolerance(kAgree, a.numel()))
        << dimension_name;
  };
  expect_independent(first[0], first[1], "readers");
  expect_independent(first[1], first[2], "readers");
  expect_independent(first[0], first[2], "readers");
  expect_independent(first, second, "streams");
  expect_independent(first.narrow(1, 0, 127), first.narrow(1, 1, 127), "rows");
  for (const int64_t distance : {1, 2, 4, 8, 16}) {
    expect_independent(first.narrow(2, 0, 128 - distance), first.narrow(2, distance, 128 - distance), "columns");
  }
}

/// A probability of 2⁻¹⁷ is not a multiple of 2⁻¹⁶, so the lower 16 bits decide.
TEST_P(DropoutKernel, ProbabilityResolutionExceeds16Bits) {
  constexpr double kSmallProbability = 0x1p-17;
  const Streams streams{{.key = 5, .first_row = 0}};
  constexpr int64_t kRows = 64, kColumns = 4096;
  const at::Tensor x = at::ones({kRows, kColumns});
  const at::Tensor expected =
      reference::make_dropout_masks(x, 1, {.probability = kSmallProbability, .streams = streams})
          .logical_not()
          .to(at::kLong);
  const at::Tensor actual = keep_mask(1, kRows, kColumns, streams, kSmallProbability).logical_not().to(at::kLong);
  EXPECT_TRUE(at::equal(actual, expected));
  // Two of 2¹⁸ elements are expected, and four for 2⁻¹⁶; this key has these.
  EXPECT_GT(actual.sum().item<int64_t>(), 0);
  EXPECT_LT(actual.sum().item<int64_t>(),
            keep_mask(1, kRows, kColumns, streams, 2 * kSmallProbability).logical_not().sum().item<int64_t>());
}

TEST_P(DropoutKernel, ZeroProbabilityKeepsAll) {
  const at::Tensor x = at::randn({3, 33});
  EXPECT_TRUE(at::equal(apply_dropout(x, 2, {{.key = 1, .first_row = 0}}, 0), at::stack({x, x})));
}

TEST_P(DropoutKernel, LaunchesNothingForEmptyInput) {
  EXPECT_EQ(apply_dropout(at::empty({0, 8}), 2, {{.key = 1, .first_row = 0}}).numel(), 0);
  const at::Tensor sum = at::empty({0, 8});
  dropout_backward(sum, at::empty({2, 0, 8}), {.probability = kProbability, .streams = {}});
}

TEST_P(DropoutKernel, RejectsRowsWithoutStreamAndSizeMismatch) {
  const at::Tensor x = at::ones({3, 8});
  EXPECT_THROW(apply_dropout(x, 2, {}), InternalError);
  EXPECT_THROW(apply_dropout(x, 2, {{.key = 1, .first_row = 1}}), InternalError);
  const Streams streams{{.key = 1, .first_row = 0}};
  EXPECT_THROW(dropout_backward(x, at::ones({2, 8, 3}), {.probability = 0.5, .streams = streams}), InternalError);
}

TEST_P(DropoutKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kColumns = 4096, kRows = (int64_t{1} << 31) / kColumns + 2;
  const Streams streams{{.key = 1, .first_row = 0}, {.key = 2, .first_row = kRows - 2}};
  const Streams small_streams{{.key = 2, .first_row = 0}};
  const at::Tensor tail = at::randn({2, kColumns}).to(at::kBFloat16);
  const at::Tensor x = reserve_tensor({kRows, kColumns}, at::kBFloat16);
  const at::Tensor reader_values = reserve_tensor({2, kRows, kColumns}, at::kBFloat16);
  x.narrow(0, kRows - 2, 2).copy_(tail);
  settings().max_trailing_blocks = 2;
  dropout(reader_values, x, {.probability = kProbability, .streams = streams});
  EXPECT_TRUE(at::equal(reader_values.narrow(1, kRows - 2, 2), apply_dropout(tail, 2, small_streams)));
  dropout_backward(x, reader_values, {.probability = kProbability, .streams = streams});
  const at::Tensor sum = tail.clone();
  dropout_backward(sum, apply_dropout(tail, 2, small_streams), {.probability = kProbability, .streams = small_streams});
  EXPECT_TRUE(at::equal(x.narrow(0, kRows - 2, 2), sum));
}

INSTANTIATE_TEST_SUITE_P(Orders, DropoutKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels

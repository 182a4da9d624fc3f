#include "vlmtrain/kernels/split_master.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace vlmtrain::kernels {
namespace {

/// The results of splitting numbers.
struct SplitCounts {
  uint64_t numbers = 0, exact = 0, lower_ties = 0, nan = 0;
  uint64_t not_nearest = 0, wrong = 0;

  void add(uint32_t bits) {
    ++numbers;
    const auto value = std::bit_cast<float>(bits);
    const SplitMaster halves = split_master(bits);
    const uint32_t joined = join_master(halves);
    if (std::isnan(value)) {
      ++nan;
      if (!std::isnan(std::bit_cast<float>(joined)) || (halves.weight & 0x7fff) <= 0x7f80) ++wrong;
      return;
    }
    if (halves.weight != c10::detail::round_to_nearest_even(value)) ++not_nearest;
    if (joined == bits) {
      ++exact;
    } else if ((bits & 0x1ffff) == 0x08000 && joined == bits - 1) {
      ++lower_ties;
    } else {
      ++wrong;
    }
  }
};

/// Splits all numbers whose upper half is a multiple of `stride` or next to infinity.
SplitCounts split_numbers(uint32_t stride) {
  SplitCounts counts;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    const uint32_t magnitude = high & 0x7fff;
    if (high % stride != 0 && (magnitude < 0x7f7e || magnitude > 0x7f82)) continue;
    for (uint32_t low = 0; low < 0x10000; ++low) counts.add(high << 16 | low);
  }
  EXPECT_EQ(counts.not_nearest, 0U);
  EXPECT_EQ(counts.wrong, 0U);
  EXPECT_EQ(counts.exact + counts.lower_ties + counts.nan, counts.numbers);
  return counts;
}

TEST(SplitMasters, AreRestored) {
  constexpr uint32_t kStride = 255;  // odd and even upper halves
  split_numbers(kStride);
}

/// Takes half a minute; the nightly test kernels.split_masters runs it.
TEST(SplitMasters, DISABLED_AllAreRestored) {
  const SplitCounts counts = split_numbers(1);
  EXPECT_EQ(counts.numbers, uint64_t{1} << 32);
  EXPECT_EQ(counts.nan, 2 * 0x7fffffU);
  EXPECT_EQ(counts.lower_ties, 2 * (0x7f800000U / 0x20000));  // one in 131,072 of the others
}

}  // namespace
}  // namespace vlmtrain::kernels

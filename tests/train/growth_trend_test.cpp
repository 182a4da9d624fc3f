#include "train/callbacks/growth_trend.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vlmtrain::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// The first step at which a rise is reported, and how large it is.
template <class Course>
std::optional<std::pair<int64_t, int64_t>> first_report(const Course& bytes_of, int64_t steps = 200) {
  GrowthTrend trend(4 * kMiB);
  for (int64_t step = 0; step < steps; ++step) {
    if (const auto rise = trend.add(bytes_of(step))) return std::pair{step, *rise};
  }
  return std::nullopt;
}

TEST(GrowthTrendTest, ReportsALeakWithItsSizePerStep) {
  const auto report = first_report([](int64_t step) { return 100 * kMiB + step * kMiB; });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->first, 49);
  EXPECT_EQ(report->second, kMiB);
}

TEST(GrowthTrendTest, ReportsALeakBehindPeaksThatPass) {
  EXPECT_TRUE(first_report([](int64_t step) { return 100 * kMiB + step * kMiB + (step % 3) * 500 * kMiB; }));
}

TEST(GrowthTrendTest, IsQuietAboutALevelCourseAndAboutOneThatSettles) {
  EXPECT_FALSE(first_report([](int64_t step) { return (100 + step % 7) * kMiB; }));
  EXPECT_FALSE(first_report([](int64_t step) { return (step < 25 ? 100 + 20 * step : 600) * kMiB; }));
  EXPECT_FALSE(first_report([](int64_t step) {
    return std::llround(static_cast<double>(kMiB) * (600 - 500 * std::exp(-static_cast<double>(step) / 25)));
  })) << "a cache that fills";
}

TEST(GrowthTrendTest, IsQuietAboutARiseThatIsTooSmall) {
  EXPECT_FALSE(first_report([](int64_t step) { return 100 * kMiB + step * 1000; }));
}

}  // namespace
}  // namespace vlmtrain::train

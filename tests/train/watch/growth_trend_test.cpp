#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "train/loop/watches.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kBytesPerMebibyte = 1 << 20;

/// Returns the first step at which a leak is reported, and its size.
template <class Curve>
std::optional<std::pair<int64_t, int64_t>> first_report(const Curve& get_bytes, int64_t steps = 200,
                                                        int64_t min_bytes = 4 * kBytesPerMebibyte) {
  LeakDetector trend(min_bytes);
  for (int64_t step = 0; step < steps; ++step) {
    if (const auto rise = trend.add(get_bytes(step))) return std::pair{step, *rise};
  }
  return std::nullopt;
}

TEST(GrowthTrendTest, ReportsALeakWithItsSizePerStep) {
  const auto report = first_report([](int64_t step) { return 100 * kBytesPerMebibyte + step * kBytesPerMebibyte; });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->first, 89);
  EXPECT_EQ(report->second, kBytesPerMebibyte);
}

TEST(GrowthTrendTest, ReportsALeakBelowTransientPeaks) {
  EXPECT_TRUE(first_report([](int64_t step) {
    return 100 * kBytesPerMebibyte + step * kBytesPerMebibyte + (step % 3) * 500 * kBytesPerMebibyte;
  }));
}

TEST(GrowthTrendTest, StaysQuietAtAConstantOrSettlingLevel) {
  EXPECT_FALSE(first_report([](int64_t step) { return (100 + step % 7) * kBytesPerMebibyte; }));
  EXPECT_FALSE(first_report([](int64_t step) { return (step < 25 ? 100 + 20 * step : 600) * kBytesPerMebibyte; }));
  EXPECT_FALSE(first_report([](int64_t step) {
    return std::llround(static_cast<double>(kBytesPerMebibyte) *
                        (600 - 500 * std::exp(-static_cast<double>(step) / 25)));
  })) << "a cache that fills";
}

/// Measured MiB of host memory, the lowest of each ten steps of smolvlm-tiny (1.3 million
/// parameters) on VQA-RAD, on the CPU.
constexpr std::array<int64_t, 40> kRecorded{244,  451,  550,  668,  727,  792,  846,  893,  992,  1011,
                                            1035, 1047, 1071, 1079, 1109, 1124, 1129, 1147, 1158, 1176,
                                            1176, 1186, 1204, 1214, 1221, 1231, 1240, 1243, 1260, 1263,
                                            1266, 1256, 1258, 1258, 1248, 1256, 1256, 1259, 1268, 1268};

int64_t get_recorded_bytes(int64_t step) {
  return kRecorded.at(static_cast<size_t>(step / 10)) * kBytesPerMebibyte;
}

TEST(GrowthTrendTest, StaysQuietForARecordedRun) {
  for (const int64_t least_mib : {16, 64, 256}) {
    EXPECT_FALSE(first_report(get_recorded_bytes, 10 * std::ssize(kRecorded), least_mib * kBytesPerMebibyte))
        << least_mib << " MiB";
  }
}

TEST(GrowthTrendTest, ReportsALeakOnTopOfTheRecordedRun) {
  const auto report =
      first_report([](int64_t step) { return get_recorded_bytes(step) + 10 * step * kBytesPerMebibyte; },
                   10 * std::ssize(kRecorded), 256 * kBytesPerMebibyte);
  ASSERT_TRUE(report);
  EXPECT_LT(report->first, 250);
  EXPECT_GE(report->second, 10 * kBytesPerMebibyte);
  EXPECT_LT(report->second, 20 * kBytesPerMebibyte) << "with what the cache still takes";
}

TEST(GrowthTrendTest, ReportsALateLeak) {
  const auto report = first_report(
      [](int64_t step) {
        const double cache = 500 * (1 - std::exp(-static_cast<double>(step) / 30));
        return std::llround(static_cast<double>(kBytesPerMebibyte) * cache) +
               std::max<int64_t>(0, step - 1000) * 8 * kBytesPerMebibyte;
      },
      2000, 256 * kBytesPerMebibyte);
  ASSERT_TRUE(report);
  EXPECT_LT(report->first, 1100);
}

TEST(GrowthTrendTest, StaysQuietForLogarithmicGrowth) {
  EXPECT_FALSE(first_report(
      [](int64_t step) {
        return std::llround(100 * static_cast<double>(kBytesPerMebibyte) * std::log1p(static_cast<double>(step)));
      },
      5000));
}

/// The last windows rise less than those before, but the later half rises evenly enough.
TEST(GrowthTrendTest, ReportsAnUnevenLeak) {
  const auto report = first_report([](int64_t step) {
    const int64_t window = step / 10;
    return (100 + 10 * std::min<int64_t>(window, 4) + 8 * std::max<int64_t>(0, window - 4)) * kBytesPerMebibyte;
  });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->first, 89);
  EXPECT_EQ(report->second, 72 * kBytesPerMebibyte / 80);
}

TEST(GrowthTrendTest, StaysQuietForSmallGrowth) {
  EXPECT_FALSE(first_report([](int64_t step) { return 100 * kBytesPerMebibyte + step * 1000; }));
}

}  // namespace

}  // namespace vlmtrain::train

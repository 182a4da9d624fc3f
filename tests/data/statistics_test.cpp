#include "vlmtrain/data/sample/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "vlmtrain/base/hash.h"

namespace vlmtrain::data {

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Bin = Histogram::Bin;

TEST(HistogramTest, GivesFewNumbersABinEach) {
  const Histogram images = make_histogram({1, 0, 1, 3, 1});
  EXPECT_THAT(images.bins, ElementsAre(Bin{0, 0, 1}, Bin{1, 1, 3}, Bin{2, 2, 0}, Bin{3, 3, 1}));
  EXPECT_EQ(images.count, 5);
  EXPECT_EQ(images.sum, 6);
  EXPECT_EQ(images.min, 0);
  EXPECT_EQ(images.median, 1);
  EXPECT_EQ(images.percentile_95, 3);
  EXPECT_EQ(images.max, 3);
  EXPECT_DOUBLE_EQ(images.mean(), 1.2);
}

TEST(HistogramTest, HasNoBinsWithoutNumbers) {
  EXPECT_THAT(make_histogram({}).bins, IsEmpty());
  EXPECT_EQ(make_histogram({}).mean(), 0);
}

TEST(HistogramTest, GivesOneNumberOneBin) {
  EXPECT_THAT(make_histogram({577}).bins, ElementsAre(Bin{577, 577, 1}));
}

TEST(HistogramTest, BinsStartAtMultiplesOfTheirWidth) {
  std::vector<int64_t> numbers(100);
  std::iota(numbers.begin(), numbers.end(), int64_t{105});
  const Histogram histogram = make_histogram(numbers);
  EXPECT_EQ(histogram.bins.front(), (Bin{100, 109, 5}));
  EXPECT_EQ(histogram.bins.back(), (Bin{200, 209, 5}));
  EXPECT_EQ(histogram.median, 154);
  EXPECT_EQ(histogram.percentile_95, 199);
}

/// A few long samples must not put all others into one bin.
TEST(HistogramTest, PutsOutliersIntoTheLastBin) {
  std::vector<int64_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  numbers.push_back(90'000);
  const Histogram histogram = make_histogram(numbers);
  EXPECT_EQ(histogram.bins.front(), (Bin{0, 99, 100}));
  EXPECT_EQ(histogram.bins.back(), (Bin{1000, 90'000, 1}));
}

TEST(HistogramTest, BinsCoverAllNumbersWithoutGaps) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int64_t> numbers =
        make_random_permutation(1 + static_cast<int64_t>(derive_stream_seed(seed, "count", {}) % 700), seed);
    for (int64_t& number : numbers) number = number * number / (1 + static_cast<int64_t>(seed));
    const Histogram histogram = make_histogram(numbers);
    int64_t total = 0;
    for (size_t i = 0; i < histogram.bins.size(); ++i) {
      const Bin& bin = histogram.bins[i];
      total += bin.count;
      if (i > 0) {
        EXPECT_EQ(bin.first, histogram.bins[i - 1].last + 1);
      }
      EXPECT_EQ(bin.count, std::ranges::count_if(numbers, [&](int64_t n) { return bin.first <= n && n <= bin.last; }));
    }
    EXPECT_EQ(total, std::ssize(numbers));
    EXPECT_LE(histogram.bins.size(), 16U);
    EXPECT_GT(histogram.bins.back().count, 0);
  }
}

/// An image; a video; a volume with masks; text; unknown; an image and a video.
SampleShapes make_shapes() {
  SampleShapes shapes(6);
  shapes.set(0, {.tokens = 10, .num_images = 1});
  shapes.set(1, {.tokens = 10, .num_videos = 1});
  shapes.set(2, {.tokens = 10, .num_volumes = 1, .masks = 2});
  shapes.set(3, {.tokens = 10});
  shapes.set(5, {.tokens = 10, .num_images = 1, .num_videos = 1});
  return shapes;
}

TEST(MediaCounts, CountsSamplesByMedia) {
  const auto counts = count_samples_by_media_kind(make_shapes());
  EXPECT_EQ(counts.samples, 5);
  EXPECT_EQ(counts.num_samples_with_images, 2);
  EXPECT_EQ(counts.num_samples_with_videos, 2);
  EXPECT_EQ(counts.num_samples_with_volumes, 1);
  EXPECT_EQ(counts.num_samples_with_masks, 1);
  EXPECT_EQ(counts.num_samples_without_media, 1);
  EXPECT_FALSE(counts.is_text_only());
}

TEST(MediaCounts, PartOfTheDataSetMayHaveNoMedia) {
  EXPECT_TRUE(count_samples_by_media_kind(make_shapes(), 3, 5).is_text_only());
  EXPECT_FALSE(count_samples_by_media_kind(make_shapes(), 3, 6).is_text_only());
  EXPECT_FALSE(count_samples_by_media_kind(make_shapes(), 4, 5).is_text_only()) << "its shape is unknown";
}

}  // namespace

bool operator==(const Histogram::Bin& left, const Histogram::Bin& right) {
  return left.first == right.first && left.last == right.last && left.count == right.count;
}

}  // namespace vlmtrain::data

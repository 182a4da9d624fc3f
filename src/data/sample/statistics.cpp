#include "vlmtrain/data/sample/statistics.h"

#include <algorithm>
#include <numeric>

namespace vlmtrain::data {

namespace {

/// Maximum number of regular bins, so that a histogram is readable as a table and as a small
/// figure. Not tuned.
constexpr int64_t kMaxHistogramBins = 14;

/// Returns the smallest number that at least `percent` % of the sorted numbers do not exceed.
int64_t compute_percentile(const std::vector<int64_t>& sorted, int64_t percent) {
  const auto index = (std::ssize(sorted) * percent + 99) / 100 - 1;
  return sorted[static_cast<size_t>(std::max<int64_t>(index, 0))];
}

int64_t round_down_to_multiple(int64_t number, int64_t width) {
  const int64_t remainder = number % width;
  return number - (remainder < 0 ? remainder + width : remainder);
}

/// Returns the smallest bin width with which [min, max] fits into kMaxHistogramBins bins.
int64_t choose_bin_width(int64_t min, int64_t max) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      const int64_t width = factor * power;
      if ((max - round_down_to_multiple(min, width)) / width < kMaxHistogramBins) return width;
    }
  }
}

}  // namespace

Histogram make_histogram(std::vector<int64_t> numbers) {
  Histogram histogram;
  if (numbers.empty()) return histogram;
  std::ranges::sort(numbers);
  histogram.count = std::ssize(numbers);
  histogram.sum = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  histogram.min = numbers.front();
  histogram.median = compute_percentile(numbers, 50);
  histogram.percentile_95 = compute_percentile(numbers, 95);
  histogram.max = numbers.back();

  const int64_t percentile_99 = compute_percentile(numbers, 99);
  const int64_t narrow_bin_width = choose_bin_width(histogram.min, percentile_99);
  // A tail bin is worth it if the other bins become less than half as wide.
  const bool needs_tail_bin = choose_bin_width(histogram.min, histogram.max) > 2 * narrow_bin_width;
  const int64_t width = needs_tail_bin ? narrow_bin_width : choose_bin_width(histogram.min, histogram.max);
  auto next = numbers.begin();
  for (int64_t first = round_down_to_multiple(histogram.min, width); next != numbers.end(); first += width) {
    const bool is_tail_bin = needs_tail_bin && first > percentile_99;
    const int64_t last = is_tail_bin ? histogram.max : first + width - 1;
    const auto bin_end = std::upper_bound(next, numbers.end(), last);
    histogram.bins.push_back({.first = first, .last = last, .count = bin_end - next});
    next = bin_end;
  }
  return histogram;
}

SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes, int64_t begin, int64_t end) {
  SampleCountsByMediaKind counts;
  for (int64_t index = begin; index < end; ++index) {
    const SampleShape* const media_shape = shapes.find_media_shape(index);
    if (media_shape == nullptr) continue;
    ++counts.samples;
    counts.num_samples_with_images += media_shape->num_images > 0 ? 1 : 0;
    counts.num_samples_with_videos += media_shape->num_videos > 0 ? 1 : 0;
    counts.num_samples_with_volumes += media_shape->num_volumes > 0 ? 1 : 0;
    counts.num_samples_with_masks += media_shape->masks > 0 ? 1 : 0;
    counts.num_samples_without_media += media_shape->num_media() == 0 ? 1 : 0;
  }
  return counts;
}

SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes) {
  return count_samples_by_media_kind(shapes, 0, shapes.size());
}

}  // namespace vlmtrain::data

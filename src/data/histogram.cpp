#include "vlmtrain/data/histogram.h"

#include <algorithm>
#include <numeric>

namespace vlmtrain::data {

namespace {

constexpr int64_t kMostBins = 14;

/// The number below which a share of the sorted ones lies, or that is it.
int64_t quantile(const std::vector<int64_t>& sorted, int64_t percent) {
  const auto place = (std::ssize(sorted) * percent + 99) / 100 - 1;
  return sorted[static_cast<size_t>(std::max<int64_t>(place, 0))];
}

int64_t floor_to(int64_t number, int64_t width) {
  const int64_t rest = number % width;
  return number - (rest < 0 ? rest + width : rest);
}

/// The least width with which the numbers from `least` to `most` are in kMostBins.
int64_t width_for(int64_t least, int64_t most) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      const int64_t width = factor * power;
      if ((most - floor_to(least, width)) / width < kMostBins) return width;
    }
  }
}

}  // namespace

Histogram histogram_of(std::vector<int64_t> numbers) {
  Histogram histogram;
  if (numbers.empty()) return histogram;
  std::ranges::sort(numbers);
  histogram.count = std::ssize(numbers);
  histogram.sum = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  histogram.least = numbers.front();
  histogram.median = quantile(numbers, 50);
  histogram.percentile_95 = quantile(numbers, 95);
  histogram.most = numbers.back();

  const int64_t usual = quantile(numbers, 99);
  const int64_t fine = width_for(histogram.least, usual);
  const bool has_tail = width_for(histogram.least, histogram.most) > 2 * fine;
  const int64_t width = has_tail ? fine : width_for(histogram.least, histogram.most);
  auto next = numbers.begin();
  for (int64_t first = floor_to(histogram.least, width); next != numbers.end(); first += width) {
    const bool is_tail = has_tail && first > usual;
    const int64_t last = is_tail ? histogram.most : first + width - 1;
    const auto behind = std::upper_bound(next, numbers.end(), last);
    histogram.bins.push_back({.first = first, .last = last, .count = behind - next});
    next = behind;
  }
  return histogram;
}

}  // namespace vlmtrain::data

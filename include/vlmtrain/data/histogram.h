#pragma once

#include <cstdint>
#include <vector>

namespace vlmtrain::data {

/// How often whole numbers occur.
struct Histogram {
  struct Bin {
    int64_t first = 0;
    int64_t last = 0;  ///< inclusive
    int64_t count = 0;
  };
  /// Ascending and without gaps, the first and the last not empty. All of one width, but for the last, which takes the
  /// largest hundredth where that reaches far beyond the others.
  std::vector<Bin> bins;

  int64_t count = 0;  ///< of the numbers; the rest is 0 without any
  int64_t sum = 0;
  int64_t min = 0;
  int64_t median = 0;  ///< of an even number the lower one
  int64_t percentile_95 = 0;
  int64_t max = 0;

  double mean() const { return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0; }
};

/// In about a dozen bins, whose width is 1, 2 or 5 times a power of ten.
Histogram make_histogram(std::vector<int64_t> numbers);

}  // namespace vlmtrain::data

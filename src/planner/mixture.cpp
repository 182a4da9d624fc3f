#include "vlmtrain/planner/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

std::vector<int64_t> apportion(std::span<const double> shares, int64_t count) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  VLMTRAIN_CHECK(sum > 0, "shares of nothing");
  std::vector<int64_t> counts;
  std::vector<double> remainders;
  counts.reserve(shares.size());
  remainders.reserve(shares.size());
  for (const double share : shares) {
    const double exact_count = share / sum * static_cast<double>(count);
    counts.push_back(static_cast<int64_t>(std::floor(exact_count)));
    remainders.push_back(exact_count - std::floor(exact_count));
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t left, size_t right) { return remainders[left] > remainders[right]; });
  int64_t left = count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  // Rounding may leave one too many behind where exact shares are whole numbers.
  for (size_t position = 0; left > 0; position = (position + 1) % order.size(), --left) ++counts[order[position]];
  return counts;
}

std::vector<size_t> interleave_evenly(std::span<const int64_t> counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int64_t> num_used(counts.size());
  std::vector<size_t> sequence;
  sequence.reserve(static_cast<size_t>(total));
  for (int64_t position = 1; position <= total; ++position) {
    // In units of 1 / total, so that nothing is rounded.
    const auto deficit = [&](size_t index) { return counts[index] * position - num_used[index] * total; };
    size_t next = 0;
    for (size_t index = 1; index < counts.size(); ++index) {
      if (deficit(index) > deficit(next)) next = index;
    }
    ++num_used[next];
    sequence.push_back(next);
  }
  return sequence;
}

}  // namespace vlmtrain::planner

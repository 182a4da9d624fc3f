#include "vlmtrain/planner/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

std::vector<int64_t> counts_by_share(std::span<const double> shares, int64_t count) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  VLMTRAIN_CHECK(sum > 0, "shares of nothing");
  std::vector<int64_t> counts;
  std::vector<double> remainders;
  counts.reserve(shares.size());
  remainders.reserve(shares.size());
  for (const double share : shares) {
    const double exact = share / sum * static_cast<double>(count);
    counts.push_back(static_cast<int64_t>(std::floor(exact)));
    remainders.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t left, size_t right) { return remainders[left] > remainders[right]; });
  int64_t left = count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  // Rounding may leave one too many behind where exact shares are whole numbers.
  for (size_t place = 0; left > 0; place = (place + 1) % order.size(), --left) ++counts[order[place]];
  return counts;
}

std::vector<size_t> spread_evenly(std::span<const int64_t> counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int64_t> taken(counts.size());
  std::vector<size_t> kinds;
  kinds.reserve(static_cast<size_t>(total));
  for (int64_t place = 1; place <= total; ++place) {
    // In units of 1 / total, so that nothing is rounded.
    const auto behind = [&](size_t kind) { return counts[kind] * place - taken[kind] * total; };
    size_t next = 0;
    for (size_t kind = 1; kind < counts.size(); ++kind) {
      if (behind(kind) > behind(next)) next = kind;
    }
    ++taken[next];
    kinds.push_back(next);
  }
  return kinds;
}

}  // namespace vlmtrain::planner

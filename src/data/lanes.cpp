#include "vlmtrain/data/lanes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

MixtureSampler::MixtureSampler(std::vector<ShareChange> changes) : changes_(std::move(changes)) {
  VLMTRAIN_CHECK(!changes_.empty() && changes_.front().from_batch == 0, "no shares for the first batch");
  for (auto& change : changes_) {
    auto& shares = change.shares;
    VLMTRAIN_CHECK(shares.size() == changes_.front().shares.size(), "{} shares of {} lanes", shares.size(),
                   num_sources());
    const bool are_shares = std::ranges::all_of(shares, [](double s) { return std::isfinite(s) && s >= 0; });
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    VLMTRAIN_CHECK(are_shares && sum > 0, "shares that are none");
    for (double& share : shares) share /= sum;
  }
  VLMTRAIN_CHECK(std::ranges::is_sorted(changes_, {}, &ShareChange::from_batch), "changes of shares in no order");
}

const std::vector<double>& MixtureSampler::shares(int64_t batch) const {
  const auto next_change = std::ranges::upper_bound(changes_, batch, {}, &ShareChange::from_batch);
  return std::prev(next_change)->shares;
}

int64_t MixtureSampler::choose_source(Cursor& cursor) const {
  if (num_sources() == 1) return 0;
  const auto& share = shares(cursor.num_batches);
  VLMTRAIN_CHECK(cursor.deficits.size() == share.size(), "a cursor of {} lanes", cursor.deficits.size());
  // Of the lanes that may have another unit, the one that must have it first.
  constexpr double kRounding = 1e-9;
  const double min_deficit = 1.0 / static_cast<double>(2 * num_sources() - 2);
  size_t selected = share.size();
  double fewest_draws = std::numeric_limits<double>::infinity();
  for (size_t source = 0; source < share.size(); ++source) {
    cursor.deficits[source] += share[source];
    if (share[source] == 0 || cursor.deficits[source] < min_deficit - kRounding) continue;
    const double remaining_draws = (1 - min_deficit - cursor.deficits[source]) / share[source];
    if (remaining_draws < fewest_draws - kRounding) {
      fewest_draws = remaining_draws;
      selected = source;
    }
  }
  if (selected == share.size()) {
    // Only behind a change of shares: what a lane is owed may be of one that gets no more.
    selected = 0;
    for (size_t source = 1; source < share.size(); ++source) {
      const bool is_drawn = share[source] > 0 || share[selected] == 0;
      if (is_drawn && (share[selected] == 0 || cursor.deficits[source] > cursor.deficits[selected])) selected = source;
    }
  }
  cursor.deficits[selected] -= 1;
  return static_cast<int64_t>(selected);
}

}  // namespace vlmtrain::data

#include "vlmtrain/data/lanes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

LaneChooser::LaneChooser(std::vector<ShareChange> changes) : changes_(std::move(changes)) {
  VLMTRAIN_CHECK(!changes_.empty() && changes_.front().from_batch == 0, "no shares for the first batch");
  for (auto& change : changes_) {
    auto& shares = change.shares;
    VLMTRAIN_CHECK(shares.size() == changes_.front().shares.size(), "{} shares of {} lanes", shares.size(), lanes());
    const bool are_shares = std::ranges::all_of(shares, [](double s) { return std::isfinite(s) && s >= 0; });
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    VLMTRAIN_CHECK(are_shares && sum > 0, "shares that are none");
    for (double& share : shares) share /= sum;
  }
  VLMTRAIN_CHECK(std::ranges::is_sorted(changes_, {}, &ShareChange::from_batch), "changes of shares in no order");
}

const std::vector<double>& LaneChooser::shares(int64_t batch) const {
  const auto behind = std::ranges::upper_bound(changes_, batch, {}, &ShareChange::from_batch);
  return std::prev(behind)->shares;
}

int64_t LaneChooser::choose(Cursor& cursor) const {
  if (lanes() == 1) return 0;
  const auto& share = shares(cursor.batches);
  VLMTRAIN_CHECK(cursor.due.size() == share.size(), "a cursor of {} lanes", cursor.due.size());
  // Of the lanes that may have another unit, the one that must have it first.
  constexpr double kRounding = 1e-9;
  const double slack = 1.0 / static_cast<double>(2 * lanes() - 2);
  size_t chosen = share.size();
  double least = std::numeric_limits<double>::infinity();
  for (size_t lane = 0; lane < share.size(); ++lane) {
    cursor.due[lane] += share[lane];
    if (share[lane] == 0 || cursor.due[lane] < slack - kRounding) continue;
    const double draws_left = (1 - slack - cursor.due[lane]) / share[lane];
    if (draws_left < least - kRounding) {
      least = draws_left;
      chosen = lane;
    }
  }
  if (chosen == share.size()) {
    // Only behind a change of shares: what a lane is owed may be of one that gets no more.
    chosen = 0;
    for (size_t lane = 1; lane < share.size(); ++lane) {
      const bool is_drawn = share[lane] > 0 || share[chosen] == 0;
      if (is_drawn && (share[chosen] == 0 || cursor.due[lane] > cursor.due[chosen])) chosen = lane;
    }
  }
  cursor.due[chosen] -= 1;
  return static_cast<int64_t>(chosen);
}

}  // namespace vlmtrain::data

#include "data/units_ahead.h"

#include <utility>

namespace vlmtrain::data {

UnitsAhead::UnitsAhead(const DrawOrder& order, Cursor start, int64_t units)
    : order_(&order),
      cursor_(std::move(start)),
      units_(units),
      wanted_(std::make_unique<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(order.lanes()))) {
  walks_.reserve(cursor_.lanes.size());
  for (int64_t lane = 0; lane < order.lanes(); ++lane) {
    walks_.emplace_back(order, lane, cursor_.lanes[static_cast<size_t>(lane)]);
  }
}

UnitsAhead::Next UnitsAhead::next() {
  if (given_ == unit_.size()) {
    lane_ = choose();
    const LaneWalk::Unit unit = walks_[static_cast<size_t>(lane_)].next();
    unit_.assign(unit.samples.begin(), unit.samples.end());
    begin_ = unit.begin;
    given_ = 0;
  }
  Place place = begin_;
  place.position += static_cast<int64_t>(given_);
  return {.sample = unit_[given_++], .lane = lane_, .place = place, .position = position_};
}

int64_t UnitsAhead::choose() {
  for (size_t lane = 0; lane < wanted_->size(); ++lane) {
    std::atomic<int64_t>& wanted = (*wanted_)[lane];
    if (wanted == 0) continue;
    --wanted;
    position_.reset();
    return static_cast<int64_t>(lane);
  }
  position_ = in_batch_;
  const int64_t lane = order_->chooser().choose(cursor_);
  if (++in_batch_ == units_) {
    in_batch_ = 0;
    ++cursor_.batches;
  }
  return lane;
}

}  // namespace vlmtrain::data

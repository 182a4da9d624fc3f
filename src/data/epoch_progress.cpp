#include "vlmtrain/data/epoch_progress.h"

#include <algorithm>

namespace vlmtrain::data {

EpochProgress::EpochProgress(const Ledger& ledger, const DrawOrder& order)
    : ledger_(ledger), order_(order), lanes_(static_cast<size_t>(order.lanes())) {}

const EpochProgress::Lane& EpochProgress::counted(int64_t number, const Cursor& cursor) {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  const Place place = cursor.lanes.empty() ? Place{} : cursor.lanes[static_cast<size_t>(number)];
  const int64_t dropped = ledger_.count(SampleStatus::kDropped);
  const auto is_usable = [this](int64_t sample) { return ledger_.status(sample) != SampleStatus::kDropped; };
  if (place.epoch != lane.epoch) lane.order = order_.epoch(number, place.epoch);
  if (place.epoch != lane.epoch || dropped != lane.dropped || place.position < lane.position) {
    lane.position = lane.usable_before = 0;
    lane.usable = std::max<int64_t>(1, std::ranges::count_if(lane.order->samples, is_usable));
  }
  lane.epoch = place.epoch;
  lane.dropped = dropped;
  for (; lane.position < place.position; ++lane.position) {
    if (is_usable(lane.order->samples[static_cast<size_t>(lane.position)])) ++lane.usable_before;
  }
  return lane;
}

double EpochProgress::of_lane(int64_t number, const Cursor& cursor) {
  const Lane& lane = counted(number, cursor);
  return static_cast<double>(lane.epoch) + static_cast<double>(lane.usable_before) / static_cast<double>(lane.usable);
}

double EpochProgress::at(const Cursor& cursor) {
  if (order_.lanes() == 1) return of_lane(0, cursor) / order_.lane(0).repeat;
  double taken = 0, usable = 0;
  for (int64_t number = 0; number < order_.lanes(); ++number) {
    const Lane& lane = counted(number, cursor);
    taken += static_cast<double>(lane.epoch * lane.usable + lane.usable_before);
    usable += order_.lane(number).repeat * static_cast<double>(lane.usable);
  }
  return taken / usable;
}

double units_of_epoch(const DrawOrder& order, const Ledger& ledger) {
  double units = 0;
  for (int64_t lane = 0; lane < order.lanes(); ++lane) {
    const auto epoch = order.epoch(lane, 0);
    const auto usable = std::ranges::count_if(
        epoch->samples, [&](int64_t sample) { return ledger.status(sample) != SampleStatus::kDropped; });
    const double share = static_cast<double>(usable) / static_cast<double>(std::max<size_t>(1, epoch->samples.size()));
    units += order.lane(lane).repeat * share * static_cast<double>(epoch->units());
  }
  return units;
}

}  // namespace vlmtrain::data

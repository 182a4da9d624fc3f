#include "vlmtrain/data/epoch_progress.h"

#include <algorithm>

namespace vlmtrain::data {

EpochProgress::EpochProgress(const Ledger& ledger, const SampleOrder& order)
    : ledger_(ledger), order_(order), source_progress_(static_cast<size_t>(order.num_sources())) {}

const EpochProgress::SourceProgress& EpochProgress::update_progress(int64_t source, const Cursor& cursor) {
  SourceProgress& progress = source_progress_[static_cast<size_t>(source)];
  const EpochPosition position = cursor.sources.empty() ? EpochPosition{} : cursor.sources[static_cast<size_t>(source)];
  const int64_t dropped = ledger_.count(SampleStatus::kDropped);
  const auto is_usable = [this](int64_t sample) { return ledger_.status(sample) != SampleStatus::kDropped; };
  if (position.epoch != progress.epoch) progress.order = order_.epoch(source, position.epoch);
  if (position.epoch != progress.epoch || dropped != progress.dropped || position.offset < progress.offset) {
    progress.offset = progress.usable_before = 0;
    progress.usable = std::max<int64_t>(1, std::ranges::count_if(progress.order->samples, is_usable));
  }
  progress.epoch = position.epoch;
  progress.dropped = dropped;
  for (; progress.offset < position.offset; ++progress.offset) {
    if (is_usable(progress.order->samples[static_cast<size_t>(progress.offset)])) ++progress.usable_before;
  }
  return progress;
}

double EpochProgress::get_source_progress(int64_t source, const Cursor& cursor) {
  const SourceProgress& progress = update_progress(source, cursor);
  return static_cast<double>(progress.epoch) +
         static_cast<double>(progress.usable_before) / static_cast<double>(progress.usable);
}

double EpochProgress::at(const Cursor& cursor) {
  if (order_.num_sources() == 1) return get_source_progress(0, cursor) / order_.source(0).repeat;
  double seen = 0, usable = 0;
  for (int64_t source = 0; source < order_.num_sources(); ++source) {
    const SourceProgress& progress = update_progress(source, cursor);
    seen += static_cast<double>(progress.epoch * progress.usable + progress.usable_before);
    usable += order_.source(source).repeat * static_cast<double>(progress.usable);
  }
  return seen / usable;
}

double count_epoch_units(const SampleOrder& order, const Ledger& ledger) {
  double units = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.epoch(source, 0);
    const auto usable = std::ranges::count_if(
        epoch->samples, [&](int64_t sample) { return ledger.status(sample) != SampleStatus::kDropped; });
    const double share = static_cast<double>(usable) / static_cast<double>(std::max<size_t>(1, epoch->samples.size()));
    units += order.source(source).repeat * share * static_cast<double>(epoch->units());
  }
  return units;
}

}  // namespace vlmtrain::data

#include "vlmtrain/data/epoch_progress.h"

#include <algorithm>

namespace vlmtrain::data {

EpochProgress::EpochProgress(const Ledger& ledger, uint64_t seed) : ledger_(ledger), seed_(seed) {}

double EpochProgress::at(Cursor cursor) {
  const int64_t dropped = ledger_.count(SampleStatus::kDropped);
  if (cursor.epoch != epoch_) order_ = epoch_order(ledger_.samples(), seed_, cursor.epoch);
  if (cursor.epoch != epoch_ || dropped != dropped_ || cursor.position < position_) position_ = usable_before_ = 0;
  epoch_ = cursor.epoch;
  dropped_ = dropped;
  for (; position_ < cursor.position; ++position_) {
    const int64_t sample = order_[static_cast<size_t>(position_)];
    if (ledger_.status(sample) != SampleStatus::kDropped) ++usable_before_;
  }
  const int64_t usable = std::max<int64_t>(1, ledger_.samples() - dropped);
  return static_cast<double>(cursor.epoch) + static_cast<double>(usable_before_) / static_cast<double>(usable);
}

}  // namespace vlmtrain::data

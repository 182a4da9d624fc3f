#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/ledger.h"
#include "vlmtrain/data/order.h"

namespace vlmtrain::data {

/// How many passes over the usable samples are done: a dropped sample is no part of an epoch, so that one ends when
/// each of the others was taken once. Takes O(1) a sample passed, and O(samples) after samples were dropped.
class EpochProgress {
 public:
  /// `ledger` must outlive it. `seed` is that of the orders.
  EpochProgress(const Ledger& ledger, uint64_t seed);

  /// With the next sample drawn at `cursor`; whole epochs and the share of the one that is under way.
  double at(Cursor cursor);

 private:
  const Ledger& ledger_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_
  int64_t dropped_ = -1;        // in the whole ledger, when places were counted
  int64_t position_ = 0;        // up to where they were
  int64_t usable_before_ = 0;   // places before it whose sample is not dropped
};

}  // namespace vlmtrain::data

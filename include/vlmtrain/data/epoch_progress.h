#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/ledger.h"

namespace vlmtrain::data {

/// How many passes over the usable samples are done: a dropped sample is no part of an epoch, so that one ends when
/// each of the others was taken once. Of several lanes an epoch is as many samples as can be used of all, of
/// each as often as it is repeated. Takes O(1) a
/// sample passed, and O(samples) after samples were dropped.
class EpochProgress {
 public:
  /// `ledger` and `order` must outlive it.
  EpochProgress(const Ledger& ledger, const SampleOrder& order);

  /// With the next sample drawn at `cursor`; whole epochs and the share of the one that is under way.
  double at(const Cursor& cursor);
  /// The same of one lane's own samples.
  double get_source_progress(int64_t source, const Cursor& cursor);

 private:
  struct SourceProgress {
    int64_t epoch = -1;
    std::shared_ptr<const EpochOrder> order;  // of epoch
    int64_t dropped = -1;                     // in the whole ledger, when places were counted
    int64_t offset = 0;                       // up to where they were
    int64_t usable_before = 0;                // places before it whose sample is not dropped
    int64_t usable = 0;                       // of an epoch
  };

  /// Brings what is known of a lane up to `cursor`.
  const SourceProgress& update_progress(int64_t source, const Cursor& cursor);

  const Ledger& ledger_;
  const SampleOrder& order_;
  std::vector<SourceProgress> source_progress_;
};

/// How many units an epoch has, of each lane as often as it is repeated, without samples that are dropped. Packs are as
/// those of the first epoch: later ones may be a few more or fewer.
double count_epoch_units(const SampleOrder& order, const Ledger& ledger);

}  // namespace vlmtrain::data

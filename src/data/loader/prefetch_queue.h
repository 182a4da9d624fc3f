#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/data/order/sample_order.h"

namespace vlmtrain::data {

/// The sequence of samples that loader threads process ahead of the draws. As long as no sample is
/// dropped, it equals the sequence of the draws. A source whose dropped samples must be replaced
/// gets extra units.
class PrefetchQueue {
 public:
  /// `batch_units` is the number of units in a global batch. `order` must outlive the queue.
  PrefetchQueue(const SampleOrder& order, Cursor start, int64_t batch_units);

  /// A sample to process.
  struct QueuedSample {
    int64_t sample_index = 0;
    int64_t source = 0;
    EpochPosition position{};  ///< in the order of its source
    /// Expected index of its unit in the batch; nothing for an extra unit, whose rank is unknown.
    std::optional<int64_t> expected_unit_index{};
  };
  /// REQUIRES: one caller at a time.
  QueuedSample next();
  /// Requests one more unit of a source. Thread-safe.
  void request_extra_unit(int64_t source) { ++(*num_requested_units_by_source_)[static_cast<size_t>(source)]; }

 private:
  /// Returns the source of the next unit and sets expected_unit_index_.
  int64_t take_next_source();

  const SampleOrder* order_;
  Cursor cursor_;
  int64_t units_per_batch_;
  int64_t num_queued_batch_units_ = 0;  // in the current batch
  std::vector<SourceIterator> iterators_;
  // The current unit.
  std::vector<int64_t> current_unit_samples_;
  int64_t source_ = 0;
  EpochPosition current_unit_begin_{};
  std::optional<int64_t> expected_unit_index_;
  size_t num_returned_unit_samples_ = 0;  // by next()

  std::unique_ptr<std::vector<std::atomic<int64_t>>> num_requested_units_by_source_;  // extra units not yet taken
};

}  // namespace vlmtrain::data

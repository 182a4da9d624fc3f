#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/data/draw_order.h"

namespace vlmtrain::data {

/// The samples that loader threads are to make, ahead of the draws: in the order in which they will be drawn as long as
/// none is dropped. Where a lane has to make up for one that was, its next unit comes earlier.
class PrefetchQueue {
 public:
  /// `units`: of a batch. `order` has to outlive it.
  PrefetchQueue(const SampleOrder& order, Cursor start, int64_t units);

  struct Next {
    int64_t sample = 0;
    int64_t source = 0;
    EpochPosition position{};  ///< of its epoch in the lane, where it is drawn
    /// Of its unit in the batch, as long as none is dropped; nothing for one that was wanted besides.
    std::optional<int64_t> unit_position{};
  };
  /// By one thread at a time.
  Next next();
  /// One more unit of a lane is wanted than was foreseen. By any thread.
  void request_extra_unit(int64_t source) { ++(*extra_units_)[static_cast<size_t>(source)]; }

 private:
  int64_t choose_next_source();

  const SampleOrder* order_;
  Cursor cursor_;
  int64_t batch_units_;         // of a batch
  int64_t units_in_batch_ = 0;  // of these, drawn
  std::vector<SourceIterator> iterators_;
  std::vector<int64_t> unit_samples_;                               // samples of the newest one
  int64_t source_ = 0;                                              // of it
  EpochPosition unit_begin_{};                                      // of it
  std::optional<int64_t> unit_position_;                            // of it
  size_t unit_offset_ = 0;                                          // of these
  std::unique_ptr<std::vector<std::atomic<int64_t>>> extra_units_;  // by lane
};

}  // namespace vlmtrain::data

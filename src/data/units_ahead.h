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
class UnitsAhead {
 public:
  /// `units`: of a batch. `order` has to outlive it.
  UnitsAhead(const DrawOrder& order, Cursor start, int64_t units);

  struct Next {
    int64_t sample = 0;
    int64_t lane = 0;
    Place place{};  ///< of its epoch in the lane, where it is drawn
    /// Of its unit in the batch, as long as none is dropped; nothing for one that was wanted besides.
    std::optional<int64_t> position{};
  };
  /// By one thread at a time.
  Next next();
  /// One more unit of a lane is wanted than was foreseen. By any thread.
  void want_another(int64_t lane) { ++(*wanted_)[static_cast<size_t>(lane)]; }

 private:
  int64_t choose();

  const DrawOrder* order_;
  Cursor cursor_;
  int64_t units_;         // of a batch
  int64_t in_batch_ = 0;  // of these, drawn
  std::vector<LaneWalk> walks_;
  std::vector<int64_t> unit_;                                  // samples of the newest one
  int64_t lane_ = 0;                                           // of it
  Place begin_{};                                              // of it
  std::optional<int64_t> position_;                            // of it
  size_t given_ = 0;                                           // of these
  std::unique_ptr<std::vector<std::atomic<int64_t>>> wanted_;  // by lane
};

}  // namespace vlmtrain::data

#pragma once

#include <cstdint>
#include <vector>

namespace vlmtrain::data {

/// Where the next sample is drawn: `position` in the order of `epoch`. With the seed it is all that a checkpoint needs
/// to go on with the same samples, at once.
struct Cursor {
  int64_t epoch = 0;
  int64_t position = 0;  ///< < samples of the data set

  bool operator==(const Cursor&) const = default;
};

/// The cursor behind the sample at `cursor`.
Cursor after(Cursor cursor, int64_t samples);

/// The order in which an epoch draws the samples 0 … samples-1: a function of its arguments alone.
std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch);

/// The samples' indices from a cursor on, epoch after epoch, without end. REQUIRES: samples > 0.
class EpochSequence {
 public:
  EpochSequence(int64_t samples, uint64_t seed, Cursor start);
  int64_t next();

 private:
  int64_t samples_;
  uint64_t seed_;
  Cursor cursor_;
  std::vector<int64_t> order_;  // of cursor_.epoch
};

}  // namespace vlmtrain::data

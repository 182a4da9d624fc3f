#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/order.h"

namespace vlmtrain::data {

/// Samples that are drawn with a share of their own: those of a source, or of a task. Each lane goes through its
/// samples epoch by epoch, and begins again where it ends.
struct MixtureSource {
  std::string name;
  std::vector<int64_t> samples;  ///< indices in the data set, ascending; not empty
  double repeat = 1;             ///< how often an epoch of the data set goes through them
};

/// From a global batch on, how much of what is drawn is of each lane.
struct ShareChange {
  int64_t from_batch = 0;      ///< from 0
  std::vector<double> shares;  ///< of each lane, finite and >= 0, of which one is greater; any scale
};

/// Says of which lane the next unit is to be. However many are drawn, of each lane there are less than one more or less
/// than its share of them: Tijdeman's algorithm (The chairman assignment problem, 1980), with which a step of 16 with
/// shares of 1/2, 1/4 and 1/4 has 8, 4 and 4.
class MixtureSampler {
 public:
  /// One change at least; the first from batch 0, then ascending.
  explicit MixtureSampler(std::vector<ShareChange> changes);

  /// Enters the draw in `cursor.due`, which has as many entries as there are lanes.
  int64_t choose_source(Cursor& cursor) const;

  /// Of each lane, summing up to 1, in the batch of this number from 0.
  const std::vector<double>& shares(int64_t batch) const;
  int64_t num_sources() const { return std::ssize(changes_.front().shares); }

 private:
  std::vector<ShareChange> changes_;
};

}  // namespace vlmtrain::data

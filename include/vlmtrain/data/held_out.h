#pragma once

#include <cstdint>
#include <vector>

namespace vlmtrain::data {

/// The places of a data set, ascending, divided in two.
struct HoldOutSplit {
  std::vector<int64_t> train;
  std::vector<int64_t> held_out;
};

/// Holds a share of a data set's samples out of training, drawn at random: the nearest number to it, at least one, and
/// never all. A function of the three numbers alone. REQUIRES: 0 < share < 1. Throws UserError (kBadData) where there
/// are less than two samples.
HoldOutSplit hold_out(int64_t samples, double share, uint64_t seed);

}  // namespace vlmtrain::data

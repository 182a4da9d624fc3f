#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A split of a data set into training and held-out samples, as ascending indices.
struct HoldOutSplit {
  std::vector<int64_t> train;
  std::vector<int64_t> held_out;
};

/// Holds a random share of the samples out of training: the nearest number to the share, at least
/// one and never all. A function of the arguments alone. REQUIRES: 0 < share < 1. Throws UserError
/// (kBadData) for fewer than two samples.
HoldOutSplit hold_out(int64_t samples, double share, uint64_t seed);

/// The saved state of a hold-out split of one source, for restoring it when a run resumes.
struct HoldOutState {
  std::string path;  ///< of the source
  double share = 0;
  int64_t samples = 0;           ///< size of the source
  uint64_t stamp = 0;            ///< io::Records::stamp()
  std::vector<int64_t> indices;  ///< held-out samples, ascending
  /// hash_content() of some or all of `indices`, ascending.
  std::vector<std::pair<int64_t, uint64_t>> content_hashes;

  bool has_all_contents() const { return content_hashes.size() == indices.size(); }
};

/// Returns a hash of a record's conversation, of the names of its files, and of its id unless the
/// id is derived from the index.
uint64_t hash_content(const io::Record& record, int64_t index);

/// Sets state.content_hashes for up to `max_count` of state.indices, evenly spread. Reads their
/// records on `workers` threads.
void store_content_hashes(HoldOutState& state, const io::Records& records, int64_t max_count, int64_t workers);

/// The result of restore_hold_out().
struct RestoredHoldOut {
  HoldOutSplit split;
  std::string change;  ///< a sentence about changes of the source; empty without changes
};

/// Restores the split of a source that may have changed since. Held-out samples stay held out.
/// Records appended at the end are split by themselves, as hold_out() does. Reordered records are
/// found by their contents; new ones among them are used for training. Reads no record if the stamp
/// is unchanged, else the records in state.content_hashes, and all records if these have moved.
/// Throws UserError (kUsage) if the held-out samples cannot be identified.
RestoredHoldOut restore_hold_out(const HoldOutState& state, const io::Records& records, uint64_t seed, int64_t workers);

}  // namespace vlmtrain::data

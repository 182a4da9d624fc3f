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

/// Splits `samples` samples at random. The number of held-out samples is nearest to the product of
/// `samples` and `hold_out_share`, but at least one and never all. The result depends on the
/// arguments only. REQUIRES: 0 < hold_out_share < 1. Throws UserError (kBadData) for fewer than two
/// samples.
HoldOutSplit draw_hold_out_split(int64_t samples, double hold_out_share, uint64_t seed);

/// The state of the hold-out split of one source, which a checkpoint saves to restore the split.
struct HoldOutState {
  std::string path;  ///< path of the source
  double hold_out_share = 0;
  int64_t samples = 0;           ///< size of the source
  uint64_t version_hash = 0;     ///< io::Records::version_hash() of the source
  std::vector<int64_t> indices;  ///< held-out samples, ascending
  /// hash_record_content() of some or all of `indices`, as (index, hash) in ascending order.
  std::vector<std::pair<int64_t, uint64_t>> content_hashes;

  bool has_all_content_hashes() const { return content_hashes.size() == indices.size(); }
};

/// Returns a hash of a record's conversation, the names of its files, and its id unless the id is
/// derived from `index`, the index of the record.
uint64_t hash_record_content(const io::Record& record, int64_t index);

/// Sets state.content_hashes for up to `max_count` evenly spaced entries of state.indices. Reads
/// these records on `workers` threads.
void compute_content_hashes(HoldOutState& state, const io::Records& records, int64_t max_count, int64_t workers);

/// The result of restore_hold_out().
struct RestoredHoldOut {
  HoldOutSplit split;
  std::string change_description;  ///< a clause about changes of the source for a log; empty without changes
};

/// Restores the split of a source that may have changed after the state was saved. Held-out samples
/// stay held out. Records that were appended are split separately, with the same share. If records
/// were reordered, the held-out ones are found by their contents, and all other records are used
/// for training. Reads no record if the hash is unchanged; otherwise the records in
/// state.content_hashes, and all records if these have moved. Throws UserError (kUsage) if the
/// held-out samples cannot be identified.
RestoredHoldOut restore_hold_out(const HoldOutState& state, const io::Records& records, uint64_t seed, int64_t workers);

}  // namespace vlmtrain::data

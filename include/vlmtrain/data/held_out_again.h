#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/held_out.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// What a run remembers of the samples that it holds out of one source of data.train.
struct HoldOutState {
  std::string path;  ///< of the source
  double share = 0;
  int64_t samples = 0;           ///< of the source, held out or not
  uint64_t stamp = 0;            ///< io::Records::stamp()
  std::vector<int64_t> indices;  ///< of those held out, ascending
  /// Some of `indices`, or all, ascending, each with hash_content() of its record.
  std::vector<std::pair<int64_t, uint64_t>> content_hashes;

  bool has_all_contents() const { return content_hashes.size() == indices.size(); }
};

/// A hash of what a record asks and answers, of the names of its files, and of its id unless that is its place.
uint64_t hash_content(const io::Record& record, int64_t index);

/// Reads the texts of so many of memory.places, spread over them, into memory.contents; all where there are not more.
void store_content_hashes(HoldOutState& state, const io::Records& records, int64_t max_count, int64_t workers);

struct RestoredHoldOut {
  HoldOutSplit split;
  std::string change;  ///< what has become of the held-out samples, for people; empty where nothing has changed
};

/// The division of a source that may have changed since: what was held out stays so. Records after the old ones are
/// divided as hold_out() does with them alone. Records in another order are found by their contents, and those that are
/// new among them are kept. Reads nothing where the source's stamp is the same, else the texts of the remembered
/// records, and of all where these are not in their places. Throws UserError (kUsage) where the held-out samples cannot
/// be told from others.
RestoredHoldOut restore_hold_out(const HoldOutState& state, const io::Records& records, uint64_t seed, int64_t workers);

}  // namespace vlmtrain::data

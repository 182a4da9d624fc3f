#include <algorithm>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

std::vector<int64_t> ChosenRecords::blocks() const {
  if (!std::ranges::is_sorted(places_)) return {};
  std::vector<int64_t> begins;
  for (const int64_t block : all_->blocks()) {
    const int64_t begin = std::ranges::lower_bound(places_, block) - places_.begin();
    if (begin < size() && (begins.empty() || begins.back() < begin)) begins.push_back(begin);
  }
  return begins;
}

uint64_t ChosenRecords::stamp() const {
  const uint64_t of_all = all_->stamp();
  if (of_all == 0) return 0;
  ContentHash hash;
  hash.add(of_all);
  for (const int64_t place : places_) hash.add(static_cast<uint64_t>(place));
  return hash.value();
}

}  // namespace vlmtrain::io

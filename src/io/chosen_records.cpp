#include <algorithm>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

std::vector<int64_t> SubsetRecords::block_starts() const {
  if (!std::ranges::is_sorted(indices_)) return {};
  std::vector<int64_t> starts;
  for (const int64_t block : base_->block_starts()) {
    const int64_t start = std::ranges::lower_bound(indices_, block) - indices_.begin();
    if (start < size() && (starts.empty() || starts.back() < start)) starts.push_back(start);
  }
  return starts;
}

uint64_t SubsetRecords::stamp() const {
  const uint64_t base_stamp = base_->stamp();
  if (base_stamp == 0) return 0;
  ContentHash hash;
  hash.add(base_stamp);
  for (const int64_t index : indices_) hash.add(static_cast<uint64_t>(index));
  return hash.value();
}

}  // namespace vlmtrain::io

#include "vlmtrain/io/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/hash.h"

namespace vlmtrain::io {

std::vector<int64_t> SubsetRecords::block_starts() const {
  if (!std::ranges::is_sorted(record_indices_)) return {};
  std::vector<int64_t> starts;
  // A block of the base without selected records has the same start as the next one.
  for (const int64_t block_start : base_records_->block_starts()) {
    const int64_t start = std::ranges::lower_bound(record_indices_, block_start) - record_indices_.begin();
    if (start < size() && (starts.empty() || starts.back() < start)) starts.push_back(start);
  }
  return starts;
}

uint64_t SubsetRecords::version_hash() const {
  const uint64_t base_version_hash = base_records_->version_hash();
  if (base_version_hash == 0) return 0;
  ContentHash hash;
  hash.add(base_version_hash);
  for (const int64_t index : record_indices_) hash.add(static_cast<uint64_t>(index));
  return hash.value();
}

ConcatRecords::ConcatRecords(std::vector<NamedRecords> parts) : parts_(std::move(parts)), part_starts_{0} {
  part_starts_.reserve(parts_.size() + 1);
  for (const NamedRecords& part : parts_) part_starts_.push_back(part_starts_.back() + part.records->size());
}

Record ConcatRecords::at(int64_t index) const {
  const size_t part_index = find_part_index(index);
  return add_part_name(parts_[part_index].records->at(index - part_starts_[part_index]), part_index);
}

Record ConcatRecords::at_without_media_bytes(int64_t index) const {
  const size_t part_index = find_part_index(index);
  return add_part_name(parts_[part_index].records->at_without_media_bytes(index - part_starts_[part_index]),
                       part_index);
}

std::vector<int64_t> ConcatRecords::block_starts() const {
  std::vector<int64_t> starts;
  bool has_blocks = false;
  for (size_t part_index = 0; part_index < parts_.size(); ++part_index) {
    const auto block_starts = parts_[part_index].records->block_starts();
    has_blocks = has_blocks || !block_starts.empty();
    // A file without blocks is one block, unless no file has blocks.
    if (block_starts.empty() && part_starts_[part_index] < part_starts_[part_index + 1])
      starts.push_back(part_starts_[part_index]);
    for (const int64_t block_start : block_starts) starts.push_back(part_starts_[part_index] + block_start);
  }
  return has_blocks ? starts : std::vector<int64_t>{};
}

uint64_t ConcatRecords::version_hash() const {
  ContentHash hash;
  for (const NamedRecords& part : parts_) {
    const uint64_t version_hash = part.records->version_hash();
    if (version_hash == 0) return 0;
    hash.add(version_hash);
  }
  return hash.value();
}

size_t ConcatRecords::find_part_index(int64_t index) const {
  return static_cast<size_t>(std::ranges::upper_bound(part_starts_, index) - part_starts_.begin()) - 1;
}

Record ConcatRecords::add_part_name(Record record, size_t part_index) const {
  record.location = fmt::format("{}, {}", parts_[part_index].name, record.location);
  return record;
}

}  // namespace vlmtrain::io

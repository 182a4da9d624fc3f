#include "vlmtrain/data/data_set.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

DataSet::DataSet(std::vector<SourceRecords> sources) : sources_(std::move(sources)) {
  VLMTRAIN_CHECK(!sources_.empty(), "a data set without sources");
  int64_t end = 0;
  ends_.reserve(sources_.size());
  for (const SourceRecords& source : sources_) ends_.push_back(end += source.records->size());
}

std::pair<int64_t, int64_t> DataSet::record_range(size_t source_index) const {
  return {source_index == 0 ? 0 : ends_[source_index - 1], ends_[source_index]};
}

DataSet::RecordLocation DataSet::locate(int64_t index) const {
  VLMTRAIN_CHECK(index >= 0 && index < size(), "record {} of {}", index, size());
  const auto source_index = static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  return {.source_index = source_index, .index = index - record_range(source_index).first};
}

io::Record DataSet::apply_source(io::Record record, size_t source_index) const {
  const Source& source = sources_[source_index].source;
  if (!source.task.empty()) record.task = source.task;
  if (sources_.size() > 1) record.location = source.path + ", " + record.location;
  return record;
}

io::Record DataSet::at(int64_t index) const {
  const auto [source_index, record_index] = locate(index);
  return apply_source(sources_[source_index].records->at(record_index), source_index);
}

io::Record DataSet::at_without_bytes(int64_t index) const {
  const auto [source_index, record_index] = locate(index);
  return apply_source(sources_[source_index].records->at_without_bytes(record_index), source_index);
}

uint64_t DataSet::stamp() const {
  ContentHash hash;
  for (const auto& [source, records] : sources_) {
    const uint64_t stamp = records->stamp();
    if (stamp == 0) return 0;
    hash.add(stamp).add(source.task).add(source.path);
  }
  return hash.value();
}

std::vector<int64_t> DataSet::block_starts() const {
  const bool has_blocks = std::ranges::any_of(
      sources_, [](const SourceRecords& source) { return !source.records->block_starts().empty(); });
  if (!has_blocks) return {};
  // A source in which any order costs the same goes in pieces of the size of a usual block.
  constexpr int64_t kBlockSamples = 1024;
  std::vector<int64_t> block_starts;
  for (size_t source_index = 0; source_index < sources_.size(); ++source_index) {
    const auto [begin, end] = record_range(source_index);
    const auto source_blocks = sources_[source_index].records->block_starts();
    for (const int64_t first : source_blocks) block_starts.push_back(begin + first);
    if (!source_blocks.empty()) continue;
    for (int64_t first = begin; first < end; first += kBlockSamples) block_starts.push_back(first);
  }
  return block_starts;
}

}  // namespace vlmtrain::data

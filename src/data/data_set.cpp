#include "vlmtrain/data/data_set.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

DataSet::DataSet(std::vector<Part> parts) : parts_(std::move(parts)) {
  VLMTRAIN_CHECK(!parts_.empty(), "a data set without sources");
  int64_t end = 0;
  ends_.reserve(parts_.size());
  for (const Part& part : parts_) ends_.push_back(end += part.records->size());
}

std::pair<int64_t, int64_t> DataSet::range_of(size_t part) const {
  return {part == 0 ? 0 : ends_[part - 1], ends_[part]};
}

DataSet::PlaceInPart DataSet::find(int64_t index) const {
  VLMTRAIN_CHECK(index >= 0 && index < size(), "record {} of {}", index, size());
  const auto part = static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  return {.part = part, .index = index - range_of(part).first};
}

io::Record DataSet::of_part(io::Record record, size_t part) const {
  const Source& source = parts_[part].source;
  if (!source.task.empty()) record.task = source.task;
  if (parts_.size() > 1) record.place = source.path + ", " + record.place;
  return record;
}

io::Record DataSet::at(int64_t index) const {
  const auto [part, place] = find(index);
  return of_part(parts_[part].records->at(place), part);
}

io::Record DataSet::text_at(int64_t index) const {
  const auto [part, place] = find(index);
  return of_part(parts_[part].records->text_at(place), part);
}

uint64_t DataSet::stamp() const {
  ContentHash hash;
  for (const auto& [source, records] : parts_) {
    const uint64_t stamp = records->stamp();
    if (stamp == 0) return 0;
    hash.add(stamp).add(source.task).add(source.path);
  }
  return hash.value();
}

std::vector<int64_t> DataSet::blocks() const {
  const bool any = std::ranges::any_of(parts_, [](const Part& part) { return !part.records->blocks().empty(); });
  if (!any) return {};
  // A source in which any order costs the same goes in pieces of the size of a usual block.
  constexpr int64_t kPiece = 1024;
  std::vector<int64_t> all;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto [begin, end] = range_of(part);
    const auto own = parts_[part].records->blocks();
    for (const int64_t first : own) all.push_back(begin + first);
    if (!own.empty()) continue;
    for (int64_t first = begin; first < end; first += kPiece) all.push_back(first);
  }
  return all;
}

}  // namespace vlmtrain::data

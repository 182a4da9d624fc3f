#include "io/joined_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/content_hash.h"

namespace vlmtrain::io {

JoinedRecords::JoinedRecords(std::vector<Part> parts) : parts_(std::move(parts)), begins_{0} {
  begins_.reserve(parts_.size() + 1);
  for (const Part& part : parts_) begins_.push_back(begins_.back() + part.records->size());
}

Record JoinedRecords::at(int64_t index) const {
  const size_t part = part_of(index);
  return named(parts_[part].records->at(index - begins_[part]), part);
}

Record JoinedRecords::text_at(int64_t index) const {
  const size_t part = part_of(index);
  return named(parts_[part].records->text_at(index - begins_[part]), part);
}

std::vector<int64_t> JoinedRecords::blocks() const {
  std::vector<int64_t> all;
  bool is_any = false;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto blocks = parts_[part].records->blocks();
    is_any = is_any || !blocks.empty();
    if (blocks.empty() && begins_[part] < begins_[part + 1]) all.push_back(begins_[part]);
    for (const int64_t begin : blocks) all.push_back(begins_[part] + begin);
  }
  return is_any ? all : std::vector<int64_t>{};
}

uint64_t JoinedRecords::stamp() const {
  ContentHash hash;
  for (const Part& part : parts_) {
    const uint64_t stamp = part.records->stamp();
    if (stamp == 0) return 0;
    hash.add(stamp);
  }
  return hash.value();
}

size_t JoinedRecords::part_of(int64_t index) const {
  return static_cast<size_t>(std::ranges::upper_bound(begins_, index) - begins_.begin()) - 1;
}

Record JoinedRecords::named(Record record, size_t part) const {
  record.place = fmt::format("{}, {}", parts_[part].name, record.place);
  return record;
}

}  // namespace vlmtrain::io

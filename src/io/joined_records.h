#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Several files as one data set, one behind the other; the place of a record names its file.
class JoinedRecords final : public Records {
 public:
  struct Part {
    std::string name;
    std::shared_ptr<const Records> records;
  };
  explicit JoinedRecords(std::vector<Part> parts);

  int64_t size() const override { return begins_.back(); }
  Record at(int64_t index) const override;
  Record text_at(int64_t index) const override;
  std::vector<int64_t> blocks() const override;
  uint64_t stamp() const override;

 private:
  /// The number of the part that a record is in.
  size_t part_of(int64_t index) const;
  Record named(Record record, size_t part) const;

  std::vector<Part> parts_;
  std::vector<int64_t> begins_;  // of the parts, and the end
};

}  // namespace vlmtrain::io

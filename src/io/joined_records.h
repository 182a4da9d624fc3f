#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Several files as one data set, one behind the other; the place of a record names its file.
class ConcatRecords final : public Records {
 public:
  struct NamedRecords {
    std::string name;
    std::shared_ptr<const Records> records;
  };
  explicit ConcatRecords(std::vector<NamedRecords> parts);

  int64_t size() const override { return part_starts_.back(); }
  Record at(int64_t index) const override;
  Record at_without_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t stamp() const override;

 private:
  /// The number of the part that a record is in.
  size_t find_part(int64_t index) const;
  Record add_part_name(Record record, size_t part) const;

  std::vector<NamedRecords> parts_;
  std::vector<int64_t> part_starts_;  // of the parts, and the end
};

}  // namespace vlmtrain::io

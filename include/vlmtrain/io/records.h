#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// The records of a data set, read on demand by index. Thread-safe.
class Records {
 public:
  virtual ~Records() = default;

  virtual int64_t size() const = 0;
  /// Returns a record. A record that cannot be used has a `problem`. Throws run_error if a file of
  /// the data set has changed or can no longer be read. REQUIRES: 0 <= index < size().
  virtual Record at(int64_t index) const = 0;
  /// Same as at(), but MediaRef::bytes may be get_omitted_bytes_marker() if reading the bytes takes
  /// time.
  virtual Record at_without_media_bytes(int64_t index) const { return at(index); }
  /// Returns the first index of each block of records that are cheap to read together, such as a
  /// row group. Indices ascend from 0. Empty if every order of reading costs the same.
  virtual std::vector<int64_t> block_starts() const { return {}; }
  /// Returns a hash that changes if a record may have changed, for caches. It covers the settings
  /// of the reader and the paths, sizes and times of the data set's files, but not of the media
  /// that records name. 0 if unknown.
  virtual uint64_t version_hash() const { return 0; }
};

/// Records in memory.
class InMemoryRecords final : public Records {
 public:
  InMemoryRecords() = default;
  explicit InMemoryRecords(std::vector<Record> records) : records_(std::move(records)) {}

  int64_t size() const override { return std::ssize(records_); }
  Record at(int64_t index) const override { return records_.at(static_cast<size_t>(index)); }

  /// Returns a reference to a stored record. Throws std::out_of_range for an invalid index.
  Record& operator[](int64_t index) { return records_.at(static_cast<size_t>(index)); }
  const Record& operator[](int64_t index) const { return records_.at(static_cast<size_t>(index)); }

 private:
  std::vector<Record> records_;
};

/// A selection of the records of another data set, in any order.
class SubsetRecords final : public Records {
 public:
  /// Selects the records of `base` at `indices`, in that order. REQUIRES: the indices are valid in
  /// `base`.
  SubsetRecords(std::shared_ptr<const Records> base, std::vector<int64_t> indices)
      : base_records_(std::move(base)), record_indices_(std::move(indices)) {}

  int64_t size() const override { return std::ssize(record_indices_); }
  Record at(int64_t index) const override { return base_records_->at(record_indices_.at(static_cast<size_t>(index))); }
  Record at_without_media_bytes(int64_t index) const override {
    return base_records_->at_without_media_bytes(record_indices_.at(static_cast<size_t>(index)));
  }
  /// Returns the positions in this selection where blocks of `base` begin if the indices ascend,
  /// else an empty list.
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

 private:
  std::shared_ptr<const Records> base_records_;
  std::vector<int64_t> record_indices_;
};

/// The concatenation of the files of a data set. Record::location begins with the name of the file.
class ConcatRecords final : public Records {
 public:
  /// The records of one file.
  struct NamedRecords {
    std::string name;                        ///< printable file name, for Record::location
    std::shared_ptr<const Records> records;  ///< not null
  };
  /// Concatenates `parts` in order.
  explicit ConcatRecords(std::vector<NamedRecords> parts);

  int64_t size() const override { return part_starts_.back(); }
  Record at(int64_t index) const override;
  Record at_without_media_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

 private:
  /// Returns the index of the part that contains a record.
  size_t find_part_index(int64_t index) const;
  Record add_part_name(Record record, size_t part_index) const;

  std::vector<NamedRecords> parts_;
  std::vector<int64_t> part_starts_;  // index of the first record of each part, then size()
};

}  // namespace vlmtrain::io

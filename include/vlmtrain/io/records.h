#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// The records of a data set by their places, each read when it is asked for. Thread-safe.
class Records {
 public:
  virtual ~Records() = default;

  virtual int64_t size() const = 0;
  /// REQUIRES: 0 <= index < size(). A record that cannot be used comes with its `problem`. Throws UserError (kFailed)
  /// where the data set itself cannot be read any more.
  virtual Record at(int64_t index) const = 0;
  /// The same without the bytes of media, where that takes less.
  virtual Record at_without_bytes(int64_t index) const { return at(index); }
  /// Places that are read together, at little more than the cost of one: where each such block begins, ascending from
  /// 0. Empty: any order costs the same.
  virtual std::vector<int64_t> block_starts() const { return {}; }
  /// Changes whenever a record may have changed, the content of files that records name apart: found from sizes and
  /// times of the data set's files, without reading them. 0: not known.
  virtual uint64_t stamp() const { return 0; }
};

/// Records in memory.
class InMemoryRecords final : public Records {
 public:
  InMemoryRecords() = default;
  explicit InMemoryRecords(std::vector<Record> records) : records_(std::move(records)) {}

  int64_t size() const override { return std::ssize(records_); }
  Record at(int64_t index) const override { return records_.at(static_cast<size_t>(index)); }

  Record& operator[](int64_t index) { return records_.at(static_cast<size_t>(index)); }
  const Record& operator[](int64_t index) const { return records_.at(static_cast<size_t>(index)); }

 private:
  std::vector<Record> records_;
};

/// Some of a data set's records, in any order.
class SubsetRecords final : public Records {
 public:
  SubsetRecords(std::shared_ptr<const Records> base, std::vector<int64_t> indices)
      : base_(std::move(base)), indices_(std::move(indices)) {}

  int64_t size() const override { return std::ssize(indices_); }
  Record at(int64_t index) const override { return base_->at(indices_.at(static_cast<size_t>(index))); }
  Record at_without_bytes(int64_t index) const override {
    return base_->at_without_bytes(indices_.at(static_cast<size_t>(index)));
  }
  /// Where places ascend, as they do in a part that a data set is divided into, its blocks are those of the whole.
  std::vector<int64_t> block_starts() const override;
  uint64_t stamp() const override;

 private:
  std::shared_ptr<const Records> base_;
  std::vector<int64_t> indices_;
};

}  // namespace vlmtrain::io

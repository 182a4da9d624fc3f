#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Some rows of a table, read together. Thread-safe.
class RowGroup {
 public:
  virtual ~RowGroup() = default;
  virtual int64_t bytes() const = 0;  ///< of memory
  /// A row as a JSON object, column by column; bytes are JSON's binary values. REQUIRES: a row of the group, from 0.
  virtual nlohmann::json row(int64_t index) const = 0;
};

/// A file of row groups, which a plug-in reads: the whole contract between it and the program. Errors are
/// std::runtime_error with a clause that says why. Thread-safe.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual std::vector<std::string> columns() const = 0;
  virtual std::vector<int64_t> group_rows() const = 0;
  /// `with_bytes`: false leaves {"bytes", "path"} without the content of the bytes, where that need not be read.
  virtual std::unique_ptr<const RowGroup> read(size_t group, bool with_bytes) const = 0;
};

/// What a plug-in exports, under these names: the first opens a file, which the caller owns then; the second tells
/// which contract it was built for.
using OpenRowFile = RowFile*(const char* path);
using RowFileVersion = int();
inline constexpr const char* kOpenRowFile = "vlmtrain_open_row_file";
inline constexpr const char* kRowFileVersionOf = "vlmtrain_row_file_version";
inline constexpr int kRowFileVersion = 1;

}  // namespace vlmtrain::io

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Kinds of cells that JSON values cannot represent. Such a cell is a binary JSON value with one of
/// these subtypes.
enum class SpecialCellKind : uint8_t {
  kOmittedBytes = 1,     ///< bytes that were not read; the value is empty
  kJsonText = 2,         ///< text of a column of JSON type (arrow.json)
  kUnsupportedType = 3,  ///< a cell of an unsupported type, such as a duration; the value is the name of the type
};

/// Returns the JSON value of a special cell.
inline RecordJson make_special_cell(SpecialCellKind kind, const std::string& text = {}) {
  return RecordJson::binary({text.begin(), text.end()}, static_cast<uint64_t>(kind));
}

/// Returns true for values that make_special_cell() made with `kind`.
inline bool is_special_cell(const RecordJson& value, SpecialCellKind kind) {
  return value.is_binary() && value.get_binary().has_subtype() &&
         value.get_binary().subtype() == static_cast<uint64_t>(kind);
}

/// Rows of a table that are read together, held in memory. May outlive its RowFile. Thread-safe.
class RowGroup {
 public:
  virtual ~RowGroup() = default;
  /// Returns the size in memory.
  virtual int64_t bytes() const = 0;
  /// Returns row `index`, counted from 0 in this group, as a JSON object with one entry per column.
  /// Bytes are binary JSON values without a subtype; cells that JSON cannot represent are special
  /// cells. Throws std::runtime_error if a cell cannot be read. REQUIRES: the group has the row.
  virtual RecordJson row(int64_t index) const = 0;
  /// Returns true if the group was read without bytes and it is unknown which cells are null. The
  /// caller must then read the group with bytes.
  virtual bool requires_file_bytes() const { return false; }
};

/// A file of row groups, such as Parquet. A plug-in implements it, so that the program does not
/// link to Arrow; this header is the whole contract between them. Functions throw
/// std::runtime_error whose message is a phrase without the file's name. Thread-safe.
class RowFile {
 public:
  virtual ~RowFile() = default;
  /// Returns the names of the columns in the order of the file.
  virtual std::vector<std::string> columns() const = 0;
  /// Returns the number of rows of each row group.
  virtual std::vector<int64_t> rows_per_group() const = 0;
  /// Returns the uncompressed size of each row group in bytes, according to the footer.
  virtual std::vector<int64_t> bytes_per_group() const = 0;
  /// Reads row group `group`, counted from 0. If `include_media_bytes` is false, the "bytes" of
  /// structs {"bytes", "path"} (images of Hugging Face datasets) are not read: they become
  /// kOmittedBytes, or null in cells without bytes.
  virtual std::unique_ptr<const RowGroup> read(size_t group, bool include_media_bytes) const = 0;
};

// Functions that a plug-in exports, and their symbols.
/// Opens the file at `path`. The caller owns the result. Throws std::runtime_error.
using OpenRowFileFunction = RowFile*(const char* path);
/// Returns kRowFileVersion of the header that the plug-in was built with.
using GetRowFileVersionFunction = int();
inline constexpr const char* kOpenRowFileSymbol = "vlmtrain_open_row_file";
inline constexpr const char* kRowFileVersionSymbol = "vlmtrain_row_file_version";
inline constexpr int kRowFileVersion = 2;  ///< increment with each change of this header

}  // namespace vlmtrain::io

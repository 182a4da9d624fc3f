#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Binary values of a row that are not the bytes of a cell: subtypes of JSON's binary values.
enum class SpecialCell : uint8_t {
  kOmittedBytes = 1,     ///< bytes that were not read; empty
  kJsonText = 2,         ///< a cell whose type says that its text is JSON (arrow.json); the text
  kUnsupportedType = 3,  ///< a cell of a type that has no form here, such as a duration; the name of the type
};

/// Returns a value that stands for `kind`.
inline nlohmann::json make_special_cell(SpecialCell kind, const std::string& text = {}) {
  return nlohmann::json::binary({text.begin(), text.end()}, static_cast<uint64_t>(kind));
}

/// Returns true for values that make_special_cell() made of `kind`.
inline bool is_special_cell(const nlohmann::json& value, SpecialCell kind) {
  return value.is_binary() && value.get_binary().has_subtype() &&
         value.get_binary().subtype() == static_cast<uint64_t>(kind);
}

/// Some rows of a table, read together. Thread-safe.
class RowGroup {
 public:
  virtual ~RowGroup() = default;
  virtual int64_t bytes() const = 0;  ///< of memory
  /// A row as a JSON object, column by column; bytes are JSON's binary values, others of these are a SpecialCell.
  /// REQUIRES: a row of the group, from 0.
  virtual nlohmann::json row(int64_t index) const = 0;
  /// Returns true for a group that was read without bytes and in which nothing says which cells have some: its rows
  /// have to be taken of the group with bytes.
  virtual bool needs_bytes() const { return false; }
};

/// A file of row groups, which a plug-in reads: the whole contract between it and the program. Errors are
/// std::runtime_error with a clause that says why. Thread-safe.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual std::vector<std::string> columns() const = 0;
  virtual std::vector<int64_t> group_rows() const = 0;
  /// Bytes of each row group in memory, as the footer has it: neither compressed nor with what reading it takes.
  virtual std::vector<int64_t> group_bytes() const = 0;
  /// `with_bytes`: false leaves {"bytes", "path"} without the content of the bytes (kOmittedBytes, or null where a cell
  /// has none).
  virtual std::unique_ptr<const RowGroup> read(size_t group, bool with_bytes) const = 0;
};

/// What a plug-in exports, under these names: the first opens a file, which the caller owns then; the second tells
/// which contract it was built for.
using OpenRowFile = RowFile*(const char* path);
using RowFileVersion = int();
inline constexpr const char* kOpenRowFileSymbol = "vlmtrain_open_row_file";
inline constexpr const char* kRowFileVersionSymbol = "vlmtrain_row_file_version";
inline constexpr int kRowFileVersion = 2;

}  // namespace vlmtrain::io

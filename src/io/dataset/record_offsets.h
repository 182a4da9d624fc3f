#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/mapped_file.h"

namespace vlmtrain::io {

/// Offsets of the records of a JSON array or a JSON Lines file.
struct RecordOffsets {
  bool is_json_lines = false;
  std::vector<uint64_t> begins;        ///< byte offset of each record, ascending
  std::vector<uint32_t> line_numbers;  ///< line of each record, from 1
  uint64_t end = 0;                    ///< end of the last record: the closing bracket of an array

  /// Returns the text of record `index`. `bytes` are the bytes of the file from begins[index] to
  /// the next begin or the end.
  std::string_view extract_record(size_t index, std::string_view bytes) const;
};

/// Finds the records in one pass over the file and releases its pages along the way. Only line
/// breaks are inspected in JSON Lines, and only brackets, strings and commas in an array; a record
/// that is not JSON is detected when it is parsed. Throws data_error that names `source`, line and
/// column if an array is broken, or that describes the format if the file is neither.
RecordOffsets find_record_offsets(const MappedFile& file, const std::string& source);

/// Returns the path of the cached offsets of a data file: a hash of its absolute path in the user's
/// cache folder. Returns "" without a cache folder.
std::filesystem::path get_json_index_path(const std::filesystem::path& file);

/// Reads offsets that write_json_index() wrote for a file with the same stamp and size. Returns
/// nothing if the index is missing, damaged or of another state of the file.
std::optional<RecordOffsets> read_json_index(const std::filesystem::path& index, uint64_t stamp, uint64_t file_bytes);

/// Writes offsets atomically. A failure is logged, not thrown.
void write_json_index(const std::filesystem::path& index, uint64_t stamp, const RecordOffsets& offsets);

}  // namespace vlmtrain::io

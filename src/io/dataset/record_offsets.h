#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/file.h"

namespace vlmtrain::io {

/// Positions of the records of a JSON array or a JSON Lines file.
struct RecordOffsets {
  bool is_json_lines = false;           ///< false: a JSON array
  std::vector<uint64_t> begin_offsets;  ///< byte offset of each record, ascending
  std::vector<uint32_t> line_numbers;   ///< line of each record, from 1
  uint64_t end = 0;                     ///< byte offset of an array's closing bracket; size of a JSON Lines file

  /// Returns the text of record `index` as a view of `bytes`: the bytes of the file from
  /// begin_offsets[index] to begin_offsets[index + 1], or to `end` for the last record.
  std::string_view extract_record(size_t index, std::string_view bytes) const;
};

/// Finds the records in one pass over the file and releases its pages along the way. The scan looks
/// only at line breaks in JSON Lines, and only at brackets, strings and commas in an array, so a
/// record that is not JSON is detected later, when it is parsed. Throws data_error that names
/// `source`: with line and column if an array is invalid; with the detected format if the file is
/// neither an array nor JSON Lines; or if it has more than 2^32 - 1 lines.
RecordOffsets find_record_offsets(const MappedFile& file, const std::string& source);

/// Returns the path of the file that caches the offsets of the data file `file`. Its name is a hash
/// of the absolute path, in the user's cache folder (get_user_cache_folder). Returns "" if there is
/// no cache folder.
std::filesystem::path get_json_index_path(const std::filesystem::path& file);

/// Reads offsets that write_json_index() wrote for a data file with the same version hash
/// (DataFile::version_hash) and size. Returns nothing if `index` is "", missing or damaged, or if
/// the data file has changed.
std::optional<RecordOffsets> read_json_index(const std::filesystem::path& index, uint64_t version_hash,
                                             uint64_t file_bytes);

/// Writes offsets atomically; does nothing if `index` is "". A failure is logged, not thrown,
/// because the index only saves time.
void write_json_index(const std::filesystem::path& index, uint64_t version_hash, const RecordOffsets& offsets);

}  // namespace vlmtrain::io

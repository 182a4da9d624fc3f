#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"

namespace vlmtrain::io {

/// Where the records of a JSON array or of JSON Lines lie in their file.
struct RecordOffsets {
  bool is_json_lines = false;
  std::vector<uint64_t> begins;        ///< bytes, ascending
  std::vector<uint32_t> line_numbers;  ///< of the text, from 1; of each record's begin
  uint64_t end = 0;                    ///< behind the last record: of an array the byte of its closing bracket

  /// The text of record `index`, out of the file's bytes from begins[place] to the next begin or the end.
  std::string_view extract_record(size_t index, std::string_view bytes) const;
};

/// Finds them in one pass, which gives the pages back behind it. Of JSON Lines only the breaks are looked at, of an
/// array brackets, strings and commas: whether a record is JSON in itself shows when it is parsed. data_error names
/// `source`, line and column where an array as a whole is broken, and says what the file is where it is neither.
RecordOffsets find_record_offsets(const MappedFile& file, const std::string& source);

}  // namespace vlmtrain::io

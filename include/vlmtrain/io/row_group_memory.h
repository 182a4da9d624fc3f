#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace vlmtrain::io {

/// A row group of a Parquet file, by the file's footer.
struct LargeRowGroup {
  std::filesystem::path file;
  size_t group = 0;
  int64_t rows = 0;
  int64_t bytes = 0;  ///< in memory
};

/// Memory for the row groups of all data sets that the process has open.
struct RowGroupMemory {
  std::optional<LargeRowGroup> largest;  ///< nothing where no Parquet file is open
  int64_t max_cached_bytes = 0;          ///< of all that are kept, at most
  int64_t cached_bytes = 0;              ///< of those that are kept now

  /// Returns the bytes that reading on may take in addition to what the process has now: the groups that are not kept
  /// yet, and as much again as the largest while it is read (docs/data.md).
  int64_t compute_additional_bytes() const;
};

/// Returns it as the footers say, without reading a row group. Thread-safe.
RowGroupMemory get_row_group_memory();

}  // namespace vlmtrain::io

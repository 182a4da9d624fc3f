#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/dataset/row_group_cache.h"
#include "io/files/input_file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// Opens a Parquet file with the plug-in libvlmtrain_parquet.so, which is loaded on the first call.
/// Throws data_error if the file cannot be read, or if the plug-in is missing or of another
/// version.
std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file);

/// Returns the rows of a table as records. Row groups are read on demand and cached in `cache`
/// under `data_set_id`, an id from RowGroupCache::make_unique_id() that all files of a data set
/// share. The blocks of the records are the row groups. If a row group cannot be read, its records
/// have a problem. Throws data_error that lists the columns if they do not form records.
std::shared_ptr<const Records> open_table_records(DataFile file, std::unique_ptr<const RowFile> row_file,
                                                  const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                                  uint64_t data_set_id);

/// A cell of a row that cannot be read.
struct UnsupportedCell {
  std::string column;   ///< name of the column
  std::string type;     ///< name of the Arrow type
  std::string problem;  ///< end of a message after the column's name ("has the type …"), with a suggestion
};

/// Replaces special cells (row_file.h) at any depth of a row. SpecialCellKind::kJsonText becomes
/// the parsed value. Invalid JSON and SpecialCellKind::kUnsupportedType become null and are
/// returned, at most one per column. SpecialCellKind::kOmittedBytes is unchanged.
std::vector<UnsupportedCell> replace_unsupported_cells(RecordJson& row);

/// Returns true if a row that was read without bytes must be read again with them: a list under
/// "video" or `video_column` is one video if all its entries are images, and only their bytes show
/// this. `video_column` may be "".
bool needs_media_bytes(const RecordJson& row, const std::string& video_column);

}  // namespace vlmtrain::io

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/dataset/row_group_cache.h"
#include "io/files/input_file.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// Opens a Parquet file with the plug-in libvlmtrain_parquet.so, which is loaded on the first call.
/// Throws data_error if the file cannot be read or the plug-in is missing.
std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file);

/// Returns the rows of a table as records. Row groups are read on demand and cached in `cache`
/// under the id `data_set`. The blocks of the records are the row groups. A row group that cannot
/// be read is a problem of its records. Throws data_error that lists the columns if they cannot
/// form records.
std::shared_ptr<const Records> open_table(StoredFile file, std::unique_ptr<const RowFile> rows,
                                          const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                          uint64_t data_set);

/// A column of a row with a cell that cannot be read.
struct UnsupportedCell {
  std::string column;
  std::string type;
  std::string problem;  ///< predicate for messages, with a suggestion
};

/// Replaces special cells (row_file.h) at any depth of a row: SpecialCell::kJsonText by its parsed
/// value; invalid JSON and SpecialCell::kUnsupportedType by null. Returns the replaced cells of the
/// second kind, at most one of each column.
std::vector<UnsupportedCell> resolve_special_cells(nlohmann::json& row);

/// Returns true if a row that was read without bytes has to be read with them. A list under "video"
/// or `video_column` is one video if it consists of images, which only their bytes show.
bool needs_media_bytes(const nlohmann::json& row, const std::string& video_column);

}  // namespace vlmtrain::io

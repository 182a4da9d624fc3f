#pragma once

#include <memory>

#include "io/row_group_cache.h"
#include "io/stored_file.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// The rows of a table as records, which stay in their file: row groups are read when a row of them is asked for, and
/// `cache` keeps some, under the number `data_set`. Its blocks are the row groups. A row group that cannot be read is a
/// problem of its records. data_error where the columns make no records, with the names of those that are there.
std::shared_ptr<const Records> open_table(StoredFile file, std::unique_ptr<const RowFile> rows,
                                          const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                          uint64_t data_set);

}  // namespace vlmtrain::io

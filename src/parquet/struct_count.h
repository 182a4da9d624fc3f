#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::parquet {

/// Appends to `counts`, for each struct of `file_type` whose "bytes" `column` lacks, how many structs that are not null
/// `column` has there, in the order of the schema.
void count_structs_without_bytes(const arrow::ChunkedArray& column, const arrow::DataType& file_type,
                                 std::vector<int64_t>& counts);

}  // namespace vlmtrain::parquet

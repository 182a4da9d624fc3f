#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>

#include "vlmtrain/io/row_file.h"

namespace vlmtrain::parquet {

/// Returns the value at `index` of a column as JSON; null for a null value:
/// - bytes as a binary value, lists as arrays, structs and maps with unique text keys as objects,
///   other maps as arrays of {"key", "value"};
/// - decimals, dates and times as text ("12.50", "2020-01-31");
/// - views, run-end-encoded and dictionary-encoded values as the values they encode;
/// - arrow.bool8 as a boolean, arrow.uuid as text, other arrow.* and parquet.* extension types as
///   unsupported, all further extension types as their storage values;
/// - arrow.json and unsupported types (durations, intervals, unions) as io::SpecialCellKind.
///
/// `file_type` is the type of the column in the file. If it has structs with a field "bytes" that
/// `column` lacks because it was not read, the field becomes io::SpecialCellKind::kOmittedBytes.
/// REQUIRES: `index` is in the column. Does not throw for valid columns.
io::RecordJson cell_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type);

}  // namespace vlmtrain::parquet

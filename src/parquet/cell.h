#pragma once

#include <arrow/type_fwd.h>

#include <nlohmann/json.hpp>

#include <cstdint>

namespace vlmtrain::parquet {

/// Returns the value at `index` of a column as JSON:
/// - bytes as a binary value, lists as arrays, structs and maps with unique text keys as objects,
///   other maps as arrays of {"key", "value"};
/// - decimals, dates and times as text ("12.50", "2020-01-31");
/// - views, run-end-encoded and dictionary-encoded values as the values they encode;
/// - extension types as their storage if that means the same;
/// - arrow.json and unsupported types as io::SpecialCell.
///
/// `file_type` is the type of the column in the file. A struct of it whose "bytes" were not read
/// has io::SpecialCell::kOmittedBytes.
nlohmann::json cell_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type);

}  // namespace vlmtrain::parquet

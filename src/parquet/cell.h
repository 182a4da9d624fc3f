#pragma once

#include <arrow/type_fwd.h>

#include <nlohmann/json.hpp>

#include <cstdint>

namespace vlmtrain::parquet {

/// Returns the value at `index` of a column as JSON: bytes as a binary value, lists as arrays, structs and maps with
/// texts as keys as objects, other maps as arrays of {"key", "value"}. Decimals, dates and times are the text of their
/// value ("12.50", "2020-01-31"). Views, run-end-encoded and dictionary-encoded values are what they stand for;
/// extension types are their storage where that means the same. arrow.json and types that have no form here are an
/// io::SpecialCell.
/// `file_type` is the column's type in the file: a struct of it whose "bytes" were not read has
/// io::SpecialCell::kOmittedBytes.
nlohmann::json cell_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type);

}  // namespace vlmtrain::parquet

#pragma once

#include <arrow/type_fwd.h>

#include <nlohmann/json.hpp>

#include <cstdint>

namespace vlmtrain::parquet {

/// The value at `index` of a column as JSON: bytes as a binary value, lists as arrays, structs and maps as objects;
/// what JSON has no form for (dates, decimals) as Arrow's text of it. A struct with a "path" whose "bytes" were not
/// read has empty ones.
nlohmann::json cell(const arrow::Array& column, int64_t index);

}  // namespace vlmtrain::parquet

#include "parquet/cell.h"

#include <arrow/array.h>
#include <arrow/scalar.h>
#include <arrow/type.h>

#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::parquet {
namespace {

using nlohmann::json;

template <class Array>
const Array& as(const arrow::Array& column) {
  return static_cast<const Array&>(column);
}

template <class Array>
json number(const arrow::Array& column, int64_t index) {
  return as<Array>(column).Value(index);
}

template <class Array>
json text(const arrow::Array& column, int64_t index) {
  return std::string(as<Array>(column).GetView(index));
}

template <class Array>
json bytes(const arrow::Array& column, int64_t index) {
  const std::string_view view = as<Array>(column).GetView(index);
  return json::binary(std::vector<uint8_t>(view.begin(), view.end()));
}

template <class Array>
json list(const arrow::Array& column, int64_t index) {
  const auto& lists = as<Array>(column);
  const int64_t begin = lists.value_offset(index);
  json values = json::array();
  for (int64_t i = 0; i < lists.value_length(index); ++i) values.push_back(cell(*lists.values(), begin + i));
  return values;
}

json object(const arrow::Array& column, int64_t index) {
  const auto& fields = as<arrow::StructArray>(column);
  json values = json::object();
  for (int i = 0; i < fields.num_fields(); ++i) {
    values[fields.struct_type()->field(i)->name()] = cell(*fields.field(i), index);
  }
  if (values.contains("path") && !values.contains("bytes")) values["bytes"] = json::binary({});
  return values;
}

}  // namespace

json cell(const arrow::Array& column, int64_t index) {
  if (column.IsNull(index)) return nullptr;
  switch (column.type_id()) {
    case arrow::Type::BOOL:
      return as<arrow::BooleanArray>(column).Value(index);
    case arrow::Type::INT8:
      return number<arrow::Int8Array>(column, index);
    case arrow::Type::INT16:
      return number<arrow::Int16Array>(column, index);
    case arrow::Type::INT32:
      return number<arrow::Int32Array>(column, index);
    case arrow::Type::INT64:
      return number<arrow::Int64Array>(column, index);
    case arrow::Type::UINT8:
      return number<arrow::UInt8Array>(column, index);
    case arrow::Type::UINT16:
      return number<arrow::UInt16Array>(column, index);
    case arrow::Type::UINT32:
      return number<arrow::UInt32Array>(column, index);
    case arrow::Type::UINT64:
      return number<arrow::UInt64Array>(column, index);
    case arrow::Type::FLOAT:
      return number<arrow::FloatArray>(column, index);
    case arrow::Type::DOUBLE:
      return number<arrow::DoubleArray>(column, index);
    case arrow::Type::STRING:
      return text<arrow::StringArray>(column, index);
    case arrow::Type::LARGE_STRING:
      return text<arrow::LargeStringArray>(column, index);
    case arrow::Type::BINARY:
      return bytes<arrow::BinaryArray>(column, index);
    case arrow::Type::LARGE_BINARY:
      return bytes<arrow::LargeBinaryArray>(column, index);
    case arrow::Type::FIXED_SIZE_BINARY:
      return bytes<arrow::FixedSizeBinaryArray>(column, index);
    case arrow::Type::LIST:
    case arrow::Type::MAP:
      return list<arrow::ListArray>(column, index);
    case arrow::Type::LARGE_LIST:
      return list<arrow::LargeListArray>(column, index);
    case arrow::Type::FIXED_SIZE_LIST:
      return list<arrow::FixedSizeListArray>(column, index);
    case arrow::Type::STRUCT:
      return object(column, index);
    case arrow::Type::DICTIONARY: {
      const auto& coded = as<arrow::DictionaryArray>(column);
      return cell(*coded.dictionary(), coded.GetValueIndex(index));
    }
    case arrow::Type::EXTENSION:
      return cell(*as<arrow::ExtensionArray>(column).storage(), index);
    default: {
      const auto scalar = column.GetScalar(index);
      return scalar.ok() ? json((*scalar)->ToString()) : json();
    }
  }
}

}  // namespace vlmtrain::parquet

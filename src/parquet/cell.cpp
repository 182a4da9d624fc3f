#include "parquet/cell.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>

#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/row_file.h"

namespace vlmtrain::parquet {
namespace {

using io::row_value;
using io::RowValue;
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

/// The type of the values of lists and maps; of anything else itself.
const arrow::DataType& values_of(const arrow::DataType& whole) {
  return whole.num_fields() == 1 ? *whole.field(0)->type() : whole;
}

template <class Array>
json list(const arrow::Array& column, int64_t index, const arrow::DataType& whole) {
  const auto& lists = as<Array>(column);
  const int64_t begin = lists.value_offset(index);
  json values = json::array();
  for (int64_t i = 0; i < lists.value_length(index); ++i) {
    values.push_back(cell(*lists.values(), begin + i, values_of(whole)));
  }
  return values;
}

/// A field of the file's own struct; null where it has none of that name.
const arrow::DataType* type_of(const arrow::DataType& whole, const std::string& name) {
  if (whole.id() != arrow::Type::STRUCT) return nullptr;
  const auto field = static_cast<const arrow::StructType&>(whole).GetFieldByName(name);
  return field ? field->type().get() : nullptr;
}

json object(const arrow::Array& column, int64_t index, const arrow::DataType& whole) {
  const auto& fields = as<arrow::StructArray>(column);
  json values = json::object();
  for (int i = 0; i < fields.num_fields(); ++i) {
    const std::string& name = fields.struct_type()->field(i)->name();
    const auto field = fields.field(i);
    const arrow::DataType* type = type_of(whole, name);
    values[name] = cell(*field, index, type == nullptr ? *field->type() : *type);
  }
  if (!values.contains("bytes") && type_of(whole, "bytes") != nullptr) {
    values["bytes"] = row_value(RowValue::kDroppedBytes);
  }
  return values;
}

/// Of {"a": 1} as pairs of key and value: an object where all keys are texts and none is there twice.
json map(const arrow::Array& column, int64_t index, const arrow::DataType& whole) {
  const auto& maps = as<arrow::MapArray>(column);
  const auto* type = whole.id() == arrow::Type::MAP ? static_cast<const arrow::MapType*>(&whole) : maps.map_type();
  json pairs = json::array();
  json values = json::object();
  bool is_object = true;
  for (int64_t i = maps.value_offset(index); i < maps.value_offset(index + 1); ++i) {
    json key = cell(*maps.keys(), i, *type->key_type());
    json value = cell(*maps.items(), i, *type->item_type());
    is_object = is_object && key.is_string() && values.emplace(key.get_ref<const std::string&>(), value).second;
    pairs.push_back({{"key", std::move(key)}, {"value", std::move(value)}});
  }
  return is_object ? values : pairs;
}

/// As RFC 9562 writes it: 8-4-4-4-12 digits.
std::string uuid_text(std::string_view value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[static_cast<unsigned char>(value[i]) >> 4U];
    text += kDigits[static_cast<unsigned char>(value[i]) & 15U];
  }
  return text;
}

json unread(const arrow::Array& column) {
  return row_value(RowValue::kUnreadType, column.type()->ToString());
}

json extension(const arrow::Array& column, int64_t index, const arrow::DataType& whole) {
  const auto& storage = *as<arrow::ExtensionArray>(column).storage();
  const std::string name = static_cast<const arrow::ExtensionType&>(*column.type()).extension_name();
  json value =
      cell(storage, index,
           whole.id() == arrow::Type::EXTENSION ? *static_cast<const arrow::ExtensionType&>(whole).storage_type()
                                                : *storage.type());
  if (name == "arrow.json") {
    return value.is_string() ? row_value(RowValue::kJsonText, value.get_ref<const std::string&>()) : unread(column);
  }
  if (name == "arrow.bool8") return value.is_number() ? json(value != 0) : unread(column);
  if (name == "arrow.uuid" && value.is_binary()) {
    const auto& uuid = value.get_binary();
    return uuid_text({reinterpret_cast<const char*>(uuid.data()), uuid.size()});
  }
  // The other canonical ones (tensors, variants, opaque values) need more than their storage.
  return name.starts_with("arrow.") || name.starts_with("parquet.") ? unread(column) : value;
}

json scalar_text(const arrow::Array& column, int64_t index) {
  const auto scalar = column.GetScalar(index);
  return scalar.ok() ? json((*scalar)->ToString()) : unread(column);
}

/// The value of a run of equal ones.
json value_of_run(const arrow::Array& column, int64_t index) {
  const auto scalar = column.GetScalar(index);
  if (!scalar.ok()) return unread(column);
  const auto value = arrow::MakeArrayFromScalar(*static_cast<const arrow::RunEndEncodedScalar&>(**scalar).value, 1);
  return value.ok() ? cell(**value, 0, *(*value)->type()) : unread(column);
}

}  // namespace

json cell(const arrow::Array& column, int64_t index, const arrow::DataType& whole) {
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
    case arrow::Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(as<arrow::HalfFloatArray>(column).Value(index)).ToFloat();
    case arrow::Type::FLOAT:
      return number<arrow::FloatArray>(column, index);
    case arrow::Type::DOUBLE:
      return number<arrow::DoubleArray>(column, index);
    case arrow::Type::STRING:
      return text<arrow::StringArray>(column, index);
    case arrow::Type::LARGE_STRING:
      return text<arrow::LargeStringArray>(column, index);
    case arrow::Type::STRING_VIEW:
      return text<arrow::StringViewArray>(column, index);
    case arrow::Type::BINARY:
      return bytes<arrow::BinaryArray>(column, index);
    case arrow::Type::LARGE_BINARY:
      return bytes<arrow::LargeBinaryArray>(column, index);
    case arrow::Type::BINARY_VIEW:
      return bytes<arrow::BinaryViewArray>(column, index);
    case arrow::Type::FIXED_SIZE_BINARY:
      return bytes<arrow::FixedSizeBinaryArray>(column, index);
    case arrow::Type::LIST:
      return list<arrow::ListArray>(column, index, whole);
    case arrow::Type::LARGE_LIST:
      return list<arrow::LargeListArray>(column, index, whole);
    case arrow::Type::LIST_VIEW:
      return list<arrow::ListViewArray>(column, index, whole);
    case arrow::Type::LARGE_LIST_VIEW:
      return list<arrow::LargeListViewArray>(column, index, whole);
    case arrow::Type::FIXED_SIZE_LIST:
      return list<arrow::FixedSizeListArray>(column, index, whole);
    case arrow::Type::MAP:
      return map(column, index, whole);
    case arrow::Type::STRUCT:
      return object(column, index, whole);
    case arrow::Type::DICTIONARY: {
      const auto& coded = as<arrow::DictionaryArray>(column);
      return cell(*coded.dictionary(), coded.GetValueIndex(index), *coded.dictionary()->type());
    }
    case arrow::Type::RUN_END_ENCODED:
      return value_of_run(column, index);
    case arrow::Type::EXTENSION:
      return extension(column, index, whole);
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
      return scalar_text(column, index);
    default:
      return unread(column);  // durations, intervals, unions
  }
}

}  // namespace vlmtrain::parquet

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

using io::make_special_cell;
using io::SpecialCellKind;

template <class Array>
const Array& array_cast(const arrow::Array& column) {
  return static_cast<const Array&>(column);
}

template <class Array>
io::RecordJson number_to_json(const arrow::Array& column, int64_t index) {
  return array_cast<Array>(column).Value(index);
}

template <class Array>
io::RecordJson string_to_json(const arrow::Array& column, int64_t index) {
  return std::string(array_cast<Array>(column).GetView(index));
}

template <class Array>
io::RecordJson bytes_to_json(const arrow::Array& column, int64_t index) {
  const std::string_view view = array_cast<Array>(column).GetView(index);
  return io::RecordJson::binary(std::vector<uint8_t>(view.begin(), view.end()));
}

/// Returns the type of the values of a list type; the type itself if it is not a list.
const arrow::DataType& get_list_value_type(const arrow::DataType& file_type) {
  return file_type.num_fields() == 1 ? *file_type.field(0)->type() : file_type;
}

template <class Array>
io::RecordJson list_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type) {
  const auto& list_array = array_cast<Array>(column);
  const int64_t begin = list_array.value_offset(index);
  io::RecordJson values = io::RecordJson::array();
  for (int64_t i = 0; i < list_array.value_length(index); ++i) {
    values.push_back(cell_to_json(*list_array.values(), begin + i, get_list_value_type(file_type)));
  }
  return values;
}

/// Returns the type of a field of a struct type; null if there is no such field or no struct.
const arrow::DataType* find_field_type(const arrow::DataType& file_type, const std::string& name) {
  if (file_type.id() != arrow::Type::STRUCT) return nullptr;
  const auto field = static_cast<const arrow::StructType&>(file_type).GetFieldByName(name);
  return field ? field->type().get() : nullptr;
}

io::RecordJson struct_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type) {
  const auto& struct_array = array_cast<arrow::StructArray>(column);
  io::RecordJson values = io::RecordJson::object();
  for (int i = 0; i < struct_array.num_fields(); ++i) {
    const std::string& name = struct_array.struct_type()->field(i)->name();
    const auto field = struct_array.field(i);
    const arrow::DataType* type = find_field_type(file_type, name);
    values[name] = cell_to_json(*field, index, type == nullptr ? *field->type() : *type);
  }
  if (!values.contains("bytes") && find_field_type(file_type, "bytes") != nullptr) {
    values["bytes"] = make_special_cell(SpecialCellKind::kOmittedBytes);
  }
  return values;
}

/// Converts a map to an object if its keys are unique strings, else to an array of {"key",
/// "value"}.
io::RecordJson map_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type) {
  const auto& map_array = array_cast<arrow::MapArray>(column);
  const auto* type =
      file_type.id() == arrow::Type::MAP ? static_cast<const arrow::MapType*>(&file_type) : map_array.map_type();
  io::RecordJson pairs = io::RecordJson::array();
  io::RecordJson values = io::RecordJson::object();
  bool is_object = true;
  for (int64_t i = map_array.value_offset(index); i < map_array.value_offset(index + 1); ++i) {
    io::RecordJson key = cell_to_json(*map_array.keys(), i, *type->key_type());
    io::RecordJson value = cell_to_json(*map_array.items(), i, *type->item_type());
    is_object =
        is_object && key.is_string() && values.emplace(key.get_ref<const std::string&>(), io::RecordJson(value)).second;
    pairs.push_back({{"key", std::move(key)}, {"value", std::move(value)}});
  }
  return is_object ? values : pairs;
}

/// Formats a UUID as 8-4-4-4-12 hexadecimal digits (RFC 9562).
std::string format_uuid(std::string_view value) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kHexDigits[static_cast<unsigned char>(value[i]) >> 4U];
    text += kHexDigits[static_cast<unsigned char>(value[i]) & 15U];
  }
  return text;
}

/// Returns the special cell of an unsupported type.
io::RecordJson make_unsupported_type_cell(const arrow::Array& column) {
  return make_special_cell(SpecialCellKind::kUnsupportedType, column.type()->ToString());
}

/// Converts a value of an extension type from its storage.
io::RecordJson extension_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type) {
  const auto& storage = *array_cast<arrow::ExtensionArray>(column).storage();
  const std::string name = static_cast<const arrow::ExtensionType&>(*column.type()).extension_name();
  io::RecordJson value = cell_to_json(storage, index,
                                      file_type.id() == arrow::Type::EXTENSION
                                          ? *static_cast<const arrow::ExtensionType&>(file_type).storage_type()
                                          : *storage.type());
  if (name == "arrow.json") {
    return value.is_string() ? make_special_cell(SpecialCellKind::kJsonText, value.get_ref<const std::string&>())
                             : make_unsupported_type_cell(column);
  }
  if (name == "arrow.bool8") return value.is_number() ? io::RecordJson(value != 0) : make_unsupported_type_cell(column);
  if (name == "arrow.uuid" && value.is_binary()) {
    const auto& uuid = value.get_binary();
    return format_uuid({reinterpret_cast<const char*>(uuid.data()), uuid.size()});
  }
  // Values of other canonical extension types (tensors, variants, opaque values) are not determined
  // by their storage alone.
  return name.starts_with("arrow.") || name.starts_with("parquet.") ? make_unsupported_type_cell(column) : value;
}

/// Converts a decimal, date or time to Arrow's text.
io::RecordJson scalar_to_json(const arrow::Array& column, int64_t index) {
  const auto scalar = column.GetScalar(index);
  return scalar.ok() ? io::RecordJson((*scalar)->ToString()) : make_unsupported_type_cell(column);
}

/// Converts the value at an index of a run-end-encoded array.
io::RecordJson run_end_encoded_to_json(const arrow::Array& column, int64_t index) {
  const auto scalar = column.GetScalar(index);
  if (!scalar.ok()) return make_unsupported_type_cell(column);
  const auto value = arrow::MakeArrayFromScalar(*static_cast<const arrow::RunEndEncodedScalar&>(**scalar).value, 1);
  return value.ok() ? cell_to_json(**value, 0, *(*value)->type()) : make_unsupported_type_cell(column);
}

}  // namespace

io::RecordJson cell_to_json(const arrow::Array& column, int64_t index, const arrow::DataType& file_type) {
  if (column.IsNull(index)) return nullptr;
  switch (column.type_id()) {
    case arrow::Type::BOOL:
      return array_cast<arrow::BooleanArray>(column).Value(index);
    case arrow::Type::INT8:
      return number_to_json<arrow::Int8Array>(column, index);
    case arrow::Type::INT16:
      return number_to_json<arrow::Int16Array>(column, index);
    case arrow::Type::INT32:
      return number_to_json<arrow::Int32Array>(column, index);
    case arrow::Type::INT64:
      return number_to_json<arrow::Int64Array>(column, index);
    case arrow::Type::UINT8:
      return number_to_json<arrow::UInt8Array>(column, index);
    case arrow::Type::UINT16:
      return number_to_json<arrow::UInt16Array>(column, index);
    case arrow::Type::UINT32:
      return number_to_json<arrow::UInt32Array>(column, index);
    case arrow::Type::UINT64:
      return number_to_json<arrow::UInt64Array>(column, index);
    case arrow::Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(array_cast<arrow::HalfFloatArray>(column).Value(index)).ToFloat();
    case arrow::Type::FLOAT:
      return number_to_json<arrow::FloatArray>(column, index);
    case arrow::Type::DOUBLE:
      return number_to_json<arrow::DoubleArray>(column, index);
    case arrow::Type::STRING:
      return string_to_json<arrow::StringArray>(column, index);
    case arrow::Type::LARGE_STRING:
      return string_to_json<arrow::LargeStringArray>(column, index);
    case arrow::Type::STRING_VIEW:
      return string_to_json<arrow::StringViewArray>(column, index);
    case arrow::Type::BINARY:
      return bytes_to_json<arrow::BinaryArray>(column, index);
    case arrow::Type::LARGE_BINARY:
      return bytes_to_json<arrow::LargeBinaryArray>(column, index);
    case arrow::Type::BINARY_VIEW:
      return bytes_to_json<arrow::BinaryViewArray>(column, index);
    case arrow::Type::FIXED_SIZE_BINARY:
      return bytes_to_json<arrow::FixedSizeBinaryArray>(column, index);
    case arrow::Type::LIST:
      return list_to_json<arrow::ListArray>(column, index, file_type);
    case arrow::Type::LARGE_LIST:
      return list_to_json<arrow::LargeListArray>(column, index, file_type);
    case arrow::Type::LIST_VIEW:
      return list_to_json<arrow::ListViewArray>(column, index, file_type);
    case arrow::Type::LARGE_LIST_VIEW:
      return list_to_json<arrow::LargeListViewArray>(column, index, file_type);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_to_json<arrow::FixedSizeListArray>(column, index, file_type);
    case arrow::Type::MAP:
      return map_to_json(column, index, file_type);
    case arrow::Type::STRUCT:
      return struct_to_json(column, index, file_type);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary_array = array_cast<arrow::DictionaryArray>(column);
      return cell_to_json(*dictionary_array.dictionary(), dictionary_array.GetValueIndex(index),
                          *dictionary_array.dictionary()->type());
    }
    case arrow::Type::RUN_END_ENCODED:
      return run_end_encoded_to_json(column, index);
    case arrow::Type::EXTENSION:
      return extension_to_json(column, index, file_type);
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
      return scalar_to_json(column, index);
    default:
      return make_unsupported_type_cell(column);  // durations, intervals, unions
  }
}

}  // namespace vlmtrain::parquet

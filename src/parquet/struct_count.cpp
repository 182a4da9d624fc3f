#include "parquet/struct_count.h"

#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>

#include <algorithm>
#include <string>

namespace vlmtrain::parquet {
namespace {

using arrow::Type;
using Arrays = std::vector<std::shared_ptr<arrow::Array>>;

template <class List>
void append_values(const arrow::Array& array, Arrays& values) {
  values.push_back(static_cast<const List&>(array).values());
}

/// The values of lists, all of their chunks.
Arrays collect_values(const Arrays& lists) {
  Arrays values;
  for (const auto& array : lists) {
    switch (array->type_id()) {
      case Type::LIST:
      case Type::MAP:
        append_values<arrow::ListArray>(*array, values);
        break;
      case Type::LARGE_LIST:
        append_values<arrow::LargeListArray>(*array, values);
        break;
      case Type::LIST_VIEW:
        append_values<arrow::ListViewArray>(*array, values);
        break;
      case Type::LARGE_LIST_VIEW:
        append_values<arrow::LargeListViewArray>(*array, values);
        break;
      case Type::FIXED_SIZE_LIST:
        append_values<arrow::FixedSizeListArray>(*array, values);
        break;
      default:
        break;
    }
  }
  return values;
}

void count_structs(const Arrays& arrays, const arrow::DataType& file_type, std::vector<int64_t>& counts) {
  if (file_type.id() == Type::EXTENSION) {
    Arrays storage;
    for (const auto& array : arrays) storage.push_back(static_cast<const arrow::ExtensionArray&>(*array).storage());
    return count_structs(storage, *static_cast<const arrow::ExtensionType&>(file_type).storage_type(), counts);
  }
  if (file_type.id() != Type::STRUCT) {
    if (file_type.num_fields() == 1) count_structs(collect_values(arrays), *file_type.field(0)->type(), counts);
    return;
  }
  for (const auto& field : file_type.fields()) {
    Arrays fields;
    bool is_omitted = field->name() == "bytes";
    int64_t structs = 0;
    for (const auto& array : arrays) {
      const auto& struct_array = static_cast<const arrow::StructArray&>(*array);
      const auto child = struct_array.GetFieldByName(field->name());
      structs += struct_array.length() - struct_array.null_count();
      is_omitted = is_omitted && child == nullptr;
      if (child) fields.push_back(child);
    }
    if (is_omitted && file_type.num_fields() > 1) {
      counts.push_back(structs);
    } else {
      count_structs(fields, *field->type(), counts);
    }
  }
}

}  // namespace

void count_structs_without_bytes(const arrow::ChunkedArray& column, const arrow::DataType& file_type,
                                 std::vector<int64_t>& counts) {
  count_structs(column.chunks(), file_type, counts);
}

}  // namespace vlmtrain::parquet

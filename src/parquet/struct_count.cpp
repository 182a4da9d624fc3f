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
Arrays values_in(const Arrays& lists) {
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

void count(const Arrays& arrays, const arrow::DataType& whole, std::vector<int64_t>& counts) {
  if (whole.id() == Type::EXTENSION) {
    Arrays storage;
    for (const auto& array : arrays) storage.push_back(static_cast<const arrow::ExtensionArray&>(*array).storage());
    return count(storage, *static_cast<const arrow::ExtensionType&>(whole).storage_type(), counts);
  }
  if (whole.id() != Type::STRUCT) {
    if (whole.num_fields() == 1) count(values_in(arrays), *whole.field(0)->type(), counts);
    return;
  }
  for (const auto& field : whole.fields()) {
    Arrays fields;
    bool is_left_out = field->name() == "bytes";
    int64_t structs = 0;
    for (const auto& array : arrays) {
      const auto& of_struct = static_cast<const arrow::StructArray&>(*array);
      const auto child = of_struct.GetFieldByName(field->name());
      structs += of_struct.length() - of_struct.null_count();
      is_left_out = is_left_out && child == nullptr;
      if (child) fields.push_back(child);
    }
    if (is_left_out && whole.num_fields() > 1) {
      counts.push_back(structs);
    } else {
      count(fields, *field->type(), counts);
    }
  }
}

}  // namespace

void count_structs_without_bytes(const arrow::ChunkedArray& column, const arrow::DataType& whole,
                                 std::vector<int64_t>& counts) {
  count(column.chunks(), whole, counts);
}

}  // namespace vlmtrain::parquet

// The plug-in libvlmtrain_parquet.so: reads Parquet files with Arrow C++ from PyPI's pyarrow wheel.
// The program loads it when a data set needs it (src/io/dataset/record_files.h) and runs without
// Arrow otherwise. The plug-in therefore uses nothing of vlmtrain except io/row_file.h.

#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <arrow/util/byte_size.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <parquet/statistics.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parquet/cell.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::parquet {
namespace {

using arrow::Type;
using ArrayVector = std::vector<std::shared_ptr<arrow::Array>>;

template <class List>
void append_list_values(const arrow::Array& array, ArrayVector& values) {
  values.push_back(static_cast<const List&>(array).values());
}

/// Returns the values array of each of the `lists`, the chunks of a list or map column. Returns an
/// empty vector for other types.
ArrayVector collect_list_values(const ArrayVector& lists) {
  ArrayVector values;
  for (const auto& array : lists) {
    switch (array->type_id()) {
      case Type::LIST:
      case Type::MAP:
        append_list_values<arrow::ListArray>(*array, values);
        break;
      case Type::LARGE_LIST:
        append_list_values<arrow::LargeListArray>(*array, values);
        break;
      case Type::LIST_VIEW:
        append_list_values<arrow::ListViewArray>(*array, values);
        break;
      case Type::LARGE_LIST_VIEW:
        append_list_values<arrow::LargeListViewArray>(*array, values);
        break;
      case Type::FIXED_SIZE_LIST:
        append_list_values<arrow::FixedSizeListArray>(*array, values);
        break;
      default:
        break;
    }
  }
  return values;
}

/// Implements count_structs_without_bytes() for the chunks `arrays` of a column or field.
void count_chunk_structs_without_bytes(const ArrayVector& arrays, const arrow::DataType& file_type,
                                       std::vector<int64_t>& counts) {
  if (file_type.id() == Type::EXTENSION) {
    ArrayVector storage;
    for (const auto& array : arrays) storage.push_back(static_cast<const arrow::ExtensionArray&>(*array).storage());
    return count_chunk_structs_without_bytes(
        storage, *static_cast<const arrow::ExtensionType&>(file_type).storage_type(), counts);
  }
  if (file_type.id() != Type::STRUCT) {
    if (file_type.num_fields() == 1)
      count_chunk_structs_without_bytes(collect_list_values(arrays), *file_type.field(0)->type(), counts);
    return;
  }
  for (const auto& field : file_type.fields()) {
    ArrayVector fields;
    bool is_bytes_field_omitted = field->name() == "bytes";  // in the file, but not in the chunks
    int64_t num_structs = 0;
    for (const auto& array : arrays) {
      const auto& struct_array = static_cast<const arrow::StructArray&>(*array);
      const auto field_array = struct_array.GetFieldByName(field->name());
      num_structs += struct_array.length() - struct_array.null_count();
      is_bytes_field_omitted = is_bytes_field_omitted && field_array == nullptr;
      if (field_array) fields.push_back(field_array);
    }
    if (is_bytes_field_omitted && file_type.num_fields() > 1) {
      counts.push_back(num_structs);
    } else {
      count_chunk_structs_without_bytes(fields, *field->type(), counts);
    }
  }
}

/// Finds each struct type in `file_type` that has a field "bytes" in the file but not in `column`.
/// Appends the number of its values in `column` that are not null to `counts`, in the order of the
/// schema.
void count_structs_without_bytes(const arrow::ChunkedArray& column, const arrow::DataType& file_type,
                                 std::vector<int64_t>& counts) {
  count_chunk_structs_without_bytes(column.chunks(), file_type, counts);
}

/// Returns the value of a result. Throws std::runtime_error with Arrow's message for an error.
template <class T>
T get_value_or_throw(arrow::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).ValueUnsafe();
}

/// Returns the memory pool that uses malloc. Arrow's other pools do not return freed memory to the
/// system.
arrow::MemoryPool* get_memory_pool() {
  return arrow::system_memory_pool();
}

/// A row group in memory, as a table of Arrow.
class ArrowRowGroup final : public io::RowGroup {
 public:
  /// `file_schema` is the schema of the file; the table may lack its "bytes" fields.
  /// `requires_file_bytes` is the result of requires_file_bytes().
  ArrowRowGroup(std::shared_ptr<arrow::Table> table, std::shared_ptr<arrow::Schema> file_schema,
                bool requires_file_bytes)
      : table_(std::move(table)),
        file_schema_(std::move(file_schema)),
        bytes_(arrow::util::TotalBufferSize(*table_)),
        requires_file_bytes_(requires_file_bytes) {}

  int64_t bytes() const override { return bytes_; }
  bool requires_file_bytes() const override { return requires_file_bytes_; }

  io::RecordJson row(int64_t index) const override {
    io::RecordJson row = io::RecordJson::object();
    for (int i = 0; i < table_->num_columns(); ++i) {
      const auto& field = *table_->field(i);
      const auto file_field = file_schema_->GetFieldByName(field.name());
      row[field.name()] =
          convert_cell_to_json(*table_->column(i), index, file_field ? *file_field->type() : *field.type());
    }
    return row;
  }

 private:
  static io::RecordJson convert_cell_to_json(const arrow::ChunkedArray& column, int64_t index,
                                             const arrow::DataType& file_type) {
    for (const auto& chunk : column.chunks()) {
      if (index < chunk->length()) return cell_to_json(*chunk, index, file_type);
      index -= chunk->length();
    }
    throw std::runtime_error("its columns have different lengths");
  }

  std::shared_ptr<arrow::Table> table_;
  std::shared_ptr<arrow::Schema> file_schema_;
  int64_t bytes_;
  bool requires_file_bytes_;
};

/// A Parquet file. Each read opens the file again, so reads in several threads are independent.
class ParquetFile final : public io::RowFile {
 public:
  explicit ParquetFile(std::string path) : path_(std::move(path)) {
    const auto reader = ::parquet::ParquetFileReader::Open(open_file(), make_reader_properties());
    metadata_ = reader->metadata();
    const ::parquet::SchemaDescriptor& schema = *metadata_->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      all_column_indices_.push_back(i);
      (is_media_bytes_column(schema, i) ? bytes_column_indices_ : column_indices_without_bytes_).push_back(i);
    }
    if (!get_value_or_throw(make_arrow_reader(/*batch_rows=*/1))->GetSchema(&file_schema_).ok())
      throw std::runtime_error("cannot read its schema");
  }

  std::vector<std::string> columns() const override {
    const auto& root = *metadata_->schema()->group_node();
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(root.field_count()));
    for (int i = 0; i < root.field_count(); ++i) names.push_back(root.field(i)->name());
    return names;
  }

  std::vector<int64_t> rows_per_group() const override {
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(metadata_->num_row_groups()));
    for (int i = 0; i < metadata_->num_row_groups(); ++i) rows.push_back(metadata_->RowGroup(i)->num_rows());
    return rows;
  }

  std::vector<int64_t> bytes_per_group() const override {
    std::vector<int64_t> bytes;
    bytes.reserve(static_cast<size_t>(metadata_->num_row_groups()));
    for (int i = 0; i < metadata_->num_row_groups(); ++i) bytes.push_back(metadata_->RowGroup(i)->total_byte_size());
    return bytes;
  }

  std::unique_ptr<const io::RowGroup> read(size_t group, bool include_media_bytes) const override {
    try {
      auto table = read_row_group_table(static_cast<int>(group),
                                        include_media_bytes ? all_column_indices_ : column_indices_without_bytes_);
      const int64_t rows = metadata_->RowGroup(static_cast<int>(group))->num_rows();
      if (table->num_rows() != rows)
        throw std::runtime_error("has a different number of rows than its footer declares");
      const arrow::Status status = table->ValidateFull();
      if (!status.ok()) throw std::runtime_error(status.message());
      const bool requires_file_bytes = !include_media_bytes && !every_struct_has_bytes(*table, group);
      return std::make_unique<ArrowRowGroup>(std::move(table), file_schema_, requires_file_bytes);
    } catch (const std::exception& error) {
      // io/row_file.h promises std::runtime_error; exceptions of Arrow and Parquet have other
      // types.
      throw std::runtime_error(error.what());
    }
  }

 private:
  std::shared_ptr<arrow::io::RandomAccessFile> open_file() const {
    return get_value_or_throw(arrow::io::ReadableFile::Open(path_, get_memory_pool()));
  }

  /// Reads a row group in batches. Arrow doubles growing buffers, so reading a group at once takes
  /// twice its size. Batches of 16 MiB limit this overhead; the size was chosen without
  /// measurement.
  std::shared_ptr<arrow::Table> read_row_group_table(int group, const std::vector<int>& columns) const {
    constexpr int64_t kBatchBytes = int64_t{16} << 20;
    const auto row_group = metadata_->RowGroup(group);
    int64_t bytes = 0;
    for (const int column : columns) bytes += row_group->ColumnChunk(column)->total_uncompressed_size();
    const int64_t row_bytes = bytes / std::max<int64_t>(1, row_group->num_rows());
    const auto reader =
        get_value_or_throw(make_arrow_reader(std::max<int64_t>(1, kBatchBytes / std::max<int64_t>(1, row_bytes))));
    const auto batch_reader = get_value_or_throw(reader->GetRecordBatchReader({group}, columns));
    return get_value_or_throw(batch_reader->ToTable());
  }

  /// Returns a reader of batches of `batch_rows` rows. It uses neither threads nor prefetching,
  /// which take memory.
  arrow::Result<std::unique_ptr<::parquet::arrow::FileReader>> make_arrow_reader(int64_t batch_rows) const {
    ::parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_batch_size(batch_rows);
    arrow_properties.set_arrow_extensions_enabled(true);
    return ::parquet::arrow::FileReader::Make(
        get_memory_pool(), ::parquet::ParquetFileReader::Open(open_file(), make_reader_properties(), metadata_),
        arrow_properties);
  }

  /// Returns true if the null counts in the footer show that all structs of `table`, a group that
  /// was read without bytes, have bytes. Without them, cells with bytes cannot be distinguished
  /// from cells with a path only.
  bool every_struct_has_bytes(const arrow::Table& table, size_t group) const {
    std::vector<int64_t> struct_counts;
    for (int i = 0; i < table.num_columns(); ++i) {
      const auto file_type =
          file_schema_->GetFieldByName(table.field(i)->name());  // null if two columns have this name
      count_structs_without_bytes(*table.column(i), file_type ? *file_type->type() : *table.field(i)->type(),
                                  struct_counts);
    }
    if (struct_counts.size() != bytes_column_indices_.size()) return false;
    const auto row_group = metadata_->RowGroup(static_cast<int>(group));
    for (size_t i = 0; i < bytes_column_indices_.size(); ++i) {
      const auto chunk = row_group->ColumnChunk(bytes_column_indices_[i]);
      const auto statistics = chunk->encoded_statistics();
      if (!statistics || !statistics->has_null_count) return false;
      if (chunk->num_values() - statistics->null_count != struct_counts[i]) return false;
    }
    return true;
  }

  /// Returns the properties of all reads. Page checksums are verified if the file has them. Column
  /// chunks are read page by page, so that a chunk is never in memory together with its values. The
  /// read buffer of 1 MiB was chosen without measurement.
  static ::parquet::ReaderProperties make_reader_properties() {
    constexpr int64_t kReadBufferBytes = int64_t{1} << 20;
    ::parquet::ReaderProperties properties(get_memory_pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(kReadBufferBytes);
    properties.set_page_checksum_verification(true);
    return properties;
  }

  /// Returns whether the column is a field "bytes" of a struct that also has a field "path".
  static bool is_media_bytes_column(const ::parquet::SchemaDescriptor& schema, int column) {
    const auto& node = *schema.Column(column)->schema_node();
    if (node.name() != "bytes" || node.parent() == nullptr || !node.parent()->is_group()) return false;
    const auto& parent = static_cast<const ::parquet::schema::GroupNode&>(*node.parent());
    return parent.parent() != nullptr && parent.FieldIndex("path") >= 0;
  }

  std::string path_;
  std::shared_ptr<::parquet::FileMetaData> metadata_;
  std::shared_ptr<arrow::Schema> file_schema_;
  std::vector<int> all_column_indices_;
  std::vector<int> bytes_column_indices_;  // see is_media_bytes_column()
  std::vector<int> column_indices_without_bytes_;
};

}  // namespace
}  // namespace vlmtrain::parquet

#define VLMTRAIN_EXPORTED extern "C" __attribute__((visibility("default")))

// The functions of the plug-in; io/row_file.h documents them.

VLMTRAIN_EXPORTED int vlmtrain_row_file_version() {
  return vlmtrain::io::kRowFileVersion;
}

VLMTRAIN_EXPORTED vlmtrain::io::RowFile* vlmtrain_open_row_file(const char* path) {
  try {
    return new vlmtrain::parquet::ParquetFile(path);
  } catch (const std::exception& error) {
    throw std::runtime_error(error.what());
  }
}

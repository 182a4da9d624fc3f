// The plug-in libvlmtrain_parquet.so: Parquet files by Arrow C++, as it comes in PyPI's pyarrow wheel. It is loaded
// when a data set needs it (src/io/row_file_plugin.h) and uses nothing of ours but io/row_file.h, so that a program
// without Arrow needs none.

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
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
#include "parquet/struct_count.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::parquet {
namespace {

template <class T>
T value_of(arrow::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).ValueUnsafe();
}

/// Of Arrow's own pools, which keep what was freed, none is used.
arrow::MemoryPool* pool() {
  return arrow::system_memory_pool();
}

class TableGroup final : public io::RowGroup {
 public:
  /// `whole` is the schema of the file, of which the table may lack bytes.
  TableGroup(std::shared_ptr<arrow::Table> table, std::shared_ptr<arrow::Schema> whole, bool needs_bytes)
      : table_(std::move(table)),
        whole_(std::move(whole)),
        bytes_(arrow::util::TotalBufferSize(*table_)),
        needs_bytes_(needs_bytes) {}

  int64_t bytes() const override { return bytes_; }
  bool needs_bytes() const override { return needs_bytes_; }

  nlohmann::json row(int64_t index) const override {
    nlohmann::json row = nlohmann::json::object();
    for (int i = 0; i < table_->num_columns(); ++i) {
      const auto& field = *table_->field(i);
      const auto whole = whole_->GetFieldByName(field.name());
      row[field.name()] = value(*table_->column(i), index, whole ? *whole->type() : *field.type());
    }
    return row;
  }

 private:
  static nlohmann::json value(const arrow::ChunkedArray& column, int64_t index, const arrow::DataType& whole) {
    for (const auto& chunk : column.chunks()) {
      if (index < chunk->length()) return cell(*chunk, index, whole);
      index -= chunk->length();
    }
    throw std::runtime_error("a column is shorter than others");
  }

  std::shared_ptr<arrow::Table> table_;
  std::shared_ptr<arrow::Schema> whole_;
  int64_t bytes_;
  bool needs_bytes_;
};

class ParquetFile final : public io::RowFile {
 public:
  explicit ParquetFile(std::string path) : path_(std::move(path)) {
    const auto reader = ::parquet::ParquetFileReader::Open(opened(), properties());
    metadata_ = reader->metadata();
    const ::parquet::SchemaDescriptor& schema = *metadata_->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      all_.push_back(i);
      (is_content(schema, i) ? contents_ : without_bytes_).push_back(i);
    }
    if (!value_of(file_reader(/*batch_rows=*/1))->GetSchema(&whole_).ok())
      throw std::runtime_error("its schema cannot be read");
  }

  std::vector<std::string> columns() const override {
    const auto& root = *metadata_->schema()->group_node();
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(root.field_count()));
    for (int i = 0; i < root.field_count(); ++i) names.push_back(root.field(i)->name());
    return names;
  }

  std::vector<int64_t> group_rows() const override {
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(metadata_->num_row_groups()));
    for (int i = 0; i < metadata_->num_row_groups(); ++i) rows.push_back(metadata_->RowGroup(i)->num_rows());
    return rows;
  }

  std::vector<int64_t> group_bytes() const override {
    std::vector<int64_t> bytes;
    bytes.reserve(static_cast<size_t>(metadata_->num_row_groups()));
    for (int i = 0; i < metadata_->num_row_groups(); ++i) bytes.push_back(metadata_->RowGroup(i)->total_byte_size());
    return bytes;
  }

  std::unique_ptr<const io::RowGroup> read(size_t group, bool with_bytes) const override {
    try {
      auto table = read_table(static_cast<int>(group), with_bytes ? all_ : without_bytes_);
      const int64_t rows = metadata_->RowGroup(static_cast<int>(group))->num_rows();
      if (table->num_rows() != rows) throw std::runtime_error("has another number of rows than its footer says");
      const arrow::Status status = table->ValidateFull();
      if (!status.ok()) throw std::runtime_error(status.message());
      const bool needs_bytes = !with_bytes && !all_have_bytes(*table, group);
      return std::make_unique<TableGroup>(std::move(table), whole_, needs_bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error(error.what());
    }
  }

 private:
  std::shared_ptr<arrow::io::RandomAccessFile> opened() const {
    return value_of(arrow::io::ReadableFile::Open(path_, pool()));
  }

  /// In batches: Arrow's buffers double while they grow, so that a group that is read at once takes twice its size.
  std::shared_ptr<arrow::Table> read_table(int group, const std::vector<int>& columns) const {
    constexpr int64_t kBatchBytes = int64_t{16} << 20;
    const auto row_group = metadata_->RowGroup(group);
    int64_t bytes = 0;
    for (const int column : columns) bytes += row_group->ColumnChunk(column)->total_uncompressed_size();
    const int64_t row_bytes = bytes / std::max<int64_t>(1, row_group->num_rows());
    const auto reader = value_of(file_reader(std::max<int64_t>(1, kBatchBytes / std::max<int64_t>(1, row_bytes))));
    const auto batches = value_of(reader->GetRecordBatchReader({group}, columns));
    return value_of(batches->ToTable());
  }

  arrow::Result<std::unique_ptr<::parquet::arrow::FileReader>> file_reader(int64_t batch_rows) const {
    ::parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_batch_size(batch_rows);
    arrow_properties.set_arrow_extensions_enabled(true);
    return ::parquet::arrow::FileReader::Make(
        pool(), ::parquet::ParquetFileReader::Open(opened(), properties(), metadata_), arrow_properties);
  }

  /// Returns true where each struct of a group that was read without bytes has some: by the numbers of nulls in the
  /// footer. Cells without bytes, which have a path instead, cannot be told from the others otherwise.
  bool all_have_bytes(const arrow::Table& table, size_t group) const {
    std::vector<int64_t> structs;
    for (int i = 0; i < table.num_columns(); ++i) {
      const auto whole = whole_->GetFieldByName(table.field(i)->name());  // null where two bear the name
      count_structs_without_bytes(*table.column(i), whole ? *whole->type() : *table.field(i)->type(), structs);
    }
    if (structs.size() != contents_.size()) return false;
    const auto row_group = metadata_->RowGroup(static_cast<int>(group));
    for (size_t i = 0; i < contents_.size(); ++i) {
      const auto chunk = row_group->ColumnChunk(contents_[i]);
      const auto statistics = chunk->encoded_statistics();
      if (!statistics || !statistics->has_null_count) return false;
      if (chunk->num_values() - statistics->null_count != structs[i]) return false;
    }
    return true;
  }

  /// Checksums of pages are compared where the file has them. A column's chunk is read page by page: whole, it would be
  /// in memory next to the values that are made of it.
  static ::parquet::ReaderProperties properties() {
    constexpr int64_t kBufferBytes = int64_t{1} << 20;
    ::parquet::ReaderProperties properties(pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBufferBytes);
    properties.set_page_checksum_verification(true);
    return properties;
  }

  /// Whether a column is the "bytes" beside a "path".
  static bool is_content(const ::parquet::SchemaDescriptor& schema, int column) {
    const auto& node = *schema.Column(column)->schema_node();
    if (node.name() != "bytes" || node.parent() == nullptr || !node.parent()->is_group()) return false;
    const auto& parent = static_cast<const ::parquet::schema::GroupNode&>(*node.parent());
    return parent.parent() != nullptr && parent.FieldIndex("path") >= 0;
  }

  std::string path_;
  std::shared_ptr<::parquet::FileMetaData> metadata_;
  std::shared_ptr<arrow::Schema> whole_;
  std::vector<int> all_;
  std::vector<int> contents_;  // the "bytes" next to a "path"
  std::vector<int> without_bytes_;
};

}  // namespace
}  // namespace vlmtrain::parquet

#define VLMTRAIN_EXPORTED extern "C" __attribute__((visibility("default")))

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

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
  explicit TableGroup(std::shared_ptr<arrow::Table> table)
      : table_(std::move(table)), bytes_(arrow::util::TotalBufferSize(*table_)) {}

  int64_t bytes() const override { return bytes_; }

  nlohmann::json row(int64_t index) const override {
    nlohmann::json row = nlohmann::json::object();
    for (int i = 0; i < table_->num_columns(); ++i) row[table_->field(i)->name()] = value(*table_->column(i), index);
    return row;
  }

 private:
  static nlohmann::json value(const arrow::ChunkedArray& column, int64_t index) {
    for (const auto& chunk : column.chunks()) {
      if (index < chunk->length()) return cell(*chunk, index);
      index -= chunk->length();
    }
    throw std::runtime_error("a column is shorter than others");
  }

  std::shared_ptr<arrow::Table> table_;
  int64_t bytes_;
};

class ParquetFile final : public io::RowFile {
 public:
  explicit ParquetFile(std::string path) : path_(std::move(path)) {
    const auto reader = ::parquet::ParquetFileReader::Open(opened(), properties());
    metadata_ = reader->metadata();
    const ::parquet::SchemaDescriptor& schema = *metadata_->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      all_.push_back(i);
      if (!is_content(schema, i)) without_bytes_.push_back(i);
    }
  }

  std::vector<std::string> columns() const override {
    const auto& root = *metadata_->schema()->group_node();
    std::vector<std::string> names;
    for (int i = 0; i < root.field_count(); ++i) names.push_back(root.field(i)->name());
    return names;
  }

  std::vector<int64_t> group_rows() const override {
    std::vector<int64_t> rows;
    for (int i = 0; i < metadata_->num_row_groups(); ++i) rows.push_back(metadata_->RowGroup(i)->num_rows());
    return rows;
  }

  std::unique_ptr<const io::RowGroup> read(size_t group, bool with_bytes) const override {
    try {
      ::parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
      arrow_properties.set_pre_buffer(false);
      const auto reader = value_of(::parquet::arrow::FileReader::Make(
          pool(), ::parquet::ParquetFileReader::Open(opened(), properties(), metadata_), arrow_properties));
      auto table = value_of(reader->ReadRowGroup(static_cast<int>(group), with_bytes ? all_ : without_bytes_));
      const int64_t rows = metadata_->RowGroup(static_cast<int>(group))->num_rows();
      if (table->num_rows() != rows) throw std::runtime_error("has another number of rows than its footer says");
      const arrow::Status status = table->ValidateFull();
      if (!status.ok()) throw std::runtime_error(status.message());
      return std::make_unique<TableGroup>(std::move(table));
    } catch (const std::exception& error) {
      throw std::runtime_error(error.what());
    }
  }

 private:
  std::shared_ptr<arrow::io::RandomAccessFile> opened() const {
    return value_of(arrow::io::ReadableFile::Open(path_, pool()));
  }

  /// Checksums of pages are compared where the file has them.
  static ::parquet::ReaderProperties properties() {
    ::parquet::ReaderProperties properties(pool());
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
  std::vector<int> all_;
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

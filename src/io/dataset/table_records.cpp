#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/dataset/record_files.h"
#include "io/record/record_columns.h"
#include "io/record/record_reader.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

namespace {

/// Names of columns that are read in addition to kRenamableColumns (vlmtrain/io/record.h).
constexpr auto kAdditionalColumns = std::to_array<std::string_view>(
    {"conversations", "texts", "instruction", "input", "output", "history", "tools", "answer_type"});

/// Returns true if all strings in `value` are valid UTF-8. For JSON, the parser checks this, but a
/// Parquet file may contain any bytes.
bool is_all_utf8(const RecordJson& value) {
  if (value.is_string()) return is_utf8(value.get_ref<const std::string&>());
  return !value.is_structured() || std::ranges::all_of(value, is_all_utf8);
}

/// Throws data_error if data.columns names a missing column, or if no column can have turns.
void check_columns(const std::filesystem::path& file, const RowFile& row_file, const RecordSettings& settings) {
  const std::vector<std::string> columns = row_file.columns();
  std::vector<std::string> column_excerpts;
  column_excerpts.reserve(columns.size());
  for (const std::string& column : columns) column_excerpts.push_back(make_excerpt(column));
  for (const auto& [name, source_name] : settings.columns) {
    if (std::ranges::find(columns, source_name) != columns.end()) continue;
    throw data_error("{}: {} maps \"{}\" to the column \"{}\", which does not exist; its columns are {}", file.string(),
                     keys::data::kColumns, name, make_excerpt(source_name), fmt::join(column_excerpts, ", "));
  }
  if (may_have_turns(columns, settings.columns)) return;
  throw data_error(
      "{}: its columns are {}; none of them has a known name for turns or for a question and an answer; set their "
      "names, for example data.columns.question=COLUMN data.columns.answer=COLUMN (docs/reference/data-formats.md)",
      file.string(), fmt::join(column_excerpts, ", "));
}

class TableRecords final : public Records {
 public:
  TableRecords(DataFile file, std::unique_ptr<const RowFile> row_file, const RecordSettings& settings,
               std::shared_ptr<RowGroupCache> cache, uint64_t data_set_id)
      : file_(std::move(file)),
        row_file_(std::move(row_file)),
        reader_(settings, file_.path().parent_path()),
        columns_(settings.columns),
        row_group_cache_(std::move(cache)),
        data_set_id_(data_set_id),
        file_id_(row_group_cache_->make_unique_id()),
        file_stem_(file_.path().stem().string()),
        group_start_rows_{0},
        bytes_per_group_(row_file_->bytes_per_group()) {
    row_group_cache_->register_file(data_set_id_, file_id_, file_.path(), row_file_->rows_per_group(),
                                    bytes_per_group_);
    if (const auto video = columns_.find("video"); video != columns_.end()) video_column_ = video->second;
    for (const int64_t num_rows : row_file_->rows_per_group())
      group_start_rows_.push_back(group_start_rows_.back() + num_rows);
  }

  TableRecords(const TableRecords&) = delete;
  TableRecords& operator=(const TableRecords&) = delete;
  ~TableRecords() override { row_group_cache_->unregister_file(file_id_); }

  int64_t size() const override { return group_start_rows_.back(); }
  Record at(int64_t index) const override { return read_record(index, /*include_media_bytes=*/true); }
  Record at_without_media_bytes(int64_t index) const override {
    return read_record(index, /*include_media_bytes=*/false);
  }
  uint64_t version_hash() const override {
    return ContentHash().add(file_.version_hash()).add(reader_.version_hash()).value();
  }

  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> block_starts;
    for (size_t group = 0; group + 1 < group_start_rows_.size(); ++group) {
      if (group_start_rows_[group] < group_start_rows_[group + 1]) block_starts.push_back(group_start_rows_[group]);
    }
    return block_starts;
  }

 private:
  Record read_record(int64_t index, bool include_media_bytes) const {
    const auto group =
        static_cast<size_t>(std::ranges::upper_bound(group_start_rows_, index) - group_start_rows_.begin()) - 1;
    const std::string fallback_id = fmt::format("{}:{}", file_stem_, index);
    Record record;
    try {
      RecordJson row = read_row(group, index - group_start_rows_[group], include_media_bytes);
      if (is_all_utf8(row)) {
        const std::vector<UnsupportedCell> unsupported_cells = replace_unsupported_cells(row);
        record = reader_.read(std::move(row), fallback_id);
        report_unsupported_cells(unsupported_cells, record);
      } else {
        record.problem = "has a text that is not valid UTF-8";
      }
    } catch (const UserError&) {
      throw;  // the file has changed, which ends the run
    } catch (const std::runtime_error& error) {
      record.problem = fmt::format("cannot read row group {} of {}: {}; download or write the file again", group,
                                   file_.path().string(), make_excerpt(error.what(), 300));
    }
    if (record.id.empty() && !record.problem.empty()) record.id = to_printable(fallback_id);
    record.location = fmt::format("row {} of row group {}", index - group_start_rows_[group], group);
    return record;
  }

  RecordJson read_row(size_t group, int64_t row, bool include_media_bytes) const {
    const auto row_group = load_group(group, include_media_bytes);
    if (include_media_bytes) return row_group->row(row);
    if (!row_group->requires_file_bytes()) {
      RecordJson value = row_group->row(row);
      if (!needs_media_bytes(value, video_column_)) return value;
    }
    return load_group(group, /*include_media_bytes=*/true)->row(row);
  }

  /// Makes unsupported cells a problem of the record if their column is used, else a notice.
  void report_unsupported_cells(const std::vector<UnsupportedCell>& unsupported_cells, Record& record) const {
    for (const UnsupportedCell& cell : unsupported_cells) {
      if (is_used_column(cell.column)) {
        record.problem = fmt::format("its column \"{}\" {}", make_excerpt(cell.column), cell.problem);
      } else {
        record.notices.push_back(
            {.kind = fmt::format("column \"{}\" of the type {}", make_excerpt(cell.column), cell.type), .example = {}});
      }
    }
  }

  bool is_used_column(const std::string& column) const {
    return std::ranges::find(kRenamableColumns, column) != kRenamableColumns.end() ||
           std::ranges::find(kAdditionalColumns, column) != kAdditionalColumns.end() ||
           std::ranges::any_of(columns_, [&](const auto& mapped) { return mapped.second == column; });
  }

  RowGroupCache::SharedRowGroup load_group(size_t group, bool include_media_bytes) const {
    const RowGroupCache::Key key{
        .data_set_id = data_set_id_, .file_id = file_id_, .group = group, .include_media_bytes = include_media_bytes};
    return row_group_cache_->get(key, include_media_bytes ? bytes_per_group_[group] : 0, [&] {
      file_.check_unchanged();
      return row_file_->read(group, include_media_bytes);
    });
  }

  DataFile file_;
  std::unique_ptr<const RowFile> row_file_;
  RecordReader reader_;
  std::map<std::string, std::string> columns_;
  std::string video_column_;
  std::shared_ptr<RowGroupCache> row_group_cache_;
  uint64_t data_set_id_;
  uint64_t file_id_;  // in row_group_cache_
  std::string file_stem_;
  std::vector<int64_t> group_start_rows_;  // first row of each row group, and the end
  std::vector<int64_t> bytes_per_group_;
};

std::string get_binary_text(const RecordJson& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

/// Replaces special cells in `value`. Stores the first cell that cannot be read in
/// `unsupported_cell`, unless that is set.
void replace_unsupported_cell(RecordJson& value, std::optional<UnsupportedCell>& unsupported_cell) {
  if (value.is_structured()) {
    for (RecordJson& item : value) replace_unsupported_cell(item, unsupported_cell);
    return;
  }
  if (is_special_cell(value, SpecialCellKind::kUnsupportedType)) {
    std::string type = make_excerpt(get_binary_text(value));
    std::string problem =
        fmt::format("has the type {}, which is not supported; write it as text, numbers, lists or structs", type);
    if (!unsupported_cell) unsupported_cell = {.column = {}, .type = std::move(type), .problem = std::move(problem)};
    value = nullptr;
  } else if (is_special_cell(value, SpecialCellKind::kJsonText)) {
    const std::string text = get_binary_text(value);
    auto json_value = try_parse_record_json(text);
    if (!json_value && !unsupported_cell) {
      const JsonError error = find_json_error(text);
      unsupported_cell = {
          .column = {},
          .type = "arrow.json",
          .problem = fmt::format(
              "has the type arrow.json and is not valid JSON at line {}, column {}: {}; write it again, or as text",
              error.line, error.column, error.reason)};
    }
    value = json_value ? *std::move(json_value) : RecordJson();
  }
}

/// Returns true for omitted bytes and for {"bytes", "path"} with omitted bytes.
bool has_omitted_bytes(const RecordJson& value) {
  if (!value.is_object()) return is_special_cell(value, SpecialCellKind::kOmittedBytes);
  const auto bytes = value.find("bytes");
  return bytes != value.end() && is_special_cell(*bytes, SpecialCellKind::kOmittedBytes);
}

constexpr const char* kParquetPluginLibrary = "libvlmtrain_parquet.so";

}  // namespace

std::shared_ptr<const Records> open_table_records(DataFile file, std::unique_ptr<const RowFile> row_file,
                                                  const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                                  uint64_t data_set_id) {
  check_columns(file.path(), *row_file, settings);
  return std::make_shared<TableRecords>(std::move(file), std::move(row_file), settings, std::move(cache), data_set_id);
}

std::vector<UnsupportedCell> replace_unsupported_cells(RecordJson& row) {
  std::vector<UnsupportedCell> result;
  for (auto& [column, value] : row.items()) {
    std::optional<UnsupportedCell> unsupported_cell;
    replace_unsupported_cell(value, unsupported_cell);
    if (!unsupported_cell) continue;
    unsupported_cell->column = column;
    result.push_back(*std::move(unsupported_cell));
  }
  return result;
}

bool needs_media_bytes(const RecordJson& row, const std::string& video_column) {
  return std::ranges::any_of(std::initializer_list<std::string>{"video", video_column}, [&](const std::string& name) {
    const auto list = row.find(name);
    return list != row.end() && list->is_array() && std::ranges::any_of(*list, has_omitted_bytes);
  });
}

std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file) {
  // The plug-in's symbols are private, so that LibTorch and Arrow do not use each other's symbols.
  static const Plugin plugin =
      load_plugin(kParquetPluginLibrary, kRowFileVersionSymbol, kRowFileVersion, {kOpenRowFileSymbol});
  if (plugin.functions.empty()) {
    throw data_error(
        "{}: is Parquet, but the reader {} does not exist ({}); run scripts/setup.sh to download Arrow and build "
        "again, or write the data as JSON Lines",
        file.string(), kParquetPluginLibrary, make_excerpt(plugin.problem));
  }
  try {
    return std::unique_ptr<const RowFile>(
        reinterpret_cast<OpenRowFileFunction*>(plugin.functions.front())(file.c_str()));
  } catch (const std::exception& error) {
    throw data_error("{}: not a readable Parquet file: {}; download or write it again", file.string(),
                     make_excerpt(error.what(), 300));
  }
}

}  // namespace vlmtrain::io

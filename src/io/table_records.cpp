#include "io/table_records.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/dataset_record.h"
#include "io/record_columns.h"
#include "io/row_values.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

/// Fields of records next to kColumns, in which turns or their media stand.
constexpr auto kOtherFields = std::to_array<std::string_view>(
    {"conversations", "texts", "instruction", "input", "output", "history", "tools", "answer_type"});

/// What else reads JSON checks; a table's texts are any bytes.
bool holds_utf8(const json& value) {
  if (value.is_string()) return is_utf8(value.get_ref<const std::string&>());
  return !value.is_structured() || std::ranges::all_of(value, holds_utf8);
}

void check_columns(const std::filesystem::path& file, const RowFile& rows, const RecordSettings& settings) {
  const std::vector<std::string> columns = rows.columns();
  std::vector<std::string> shown;
  shown.reserve(columns.size());
  for (const std::string& column : columns) shown.push_back(excerpt(column));
  for (const auto& [name, theirs] : settings.columns) {
    if (std::ranges::find(columns, theirs) != columns.end()) continue;
    throw data_error("{}: data.columns says that \"{}\" is the column \"{}\", and there is none; its columns are {}",
                     file.string(), name, excerpt(theirs), fmt::join(shown, ", "));
  }
  if (can_make_turns(columns, settings.columns)) return;
  throw data_error(
      "{}: its columns are {}; of these none holds turns, or a question and its answer: tell which do, such as "
      "data.columns.question=COLUMN data.columns.answer=COLUMN (docs/data.md)",
      file.string(), fmt::join(shown, ", "));
}

class TableRecords final : public Records {
 public:
  TableRecords(StoredFile file, std::unique_ptr<const RowFile> rows, const RecordSettings& settings,
               std::shared_ptr<RowGroupCache> cache, uint64_t data_set)
      : file_(std::move(file)),
        rows_(std::move(rows)),
        reader_(settings, file_.path().parent_path()),
        columns_(settings.columns),
        cache_(std::move(cache)),
        data_set_(data_set),
        number_(cache_->new_number()),
        stem_(file_.path().stem().string()),
        begins_{0},
        group_bytes_(rows_->group_bytes()) {
    cache_->enter(data_set_, number_, file_.path(), rows_->group_rows(), group_bytes_);
    if (const auto video = columns_.find("video"); video != columns_.end()) video_column_ = video->second;
    for (const int64_t rows_of_group : rows_->group_rows()) begins_.push_back(begins_.back() + rows_of_group);
  }

  TableRecords(const TableRecords&) = delete;
  TableRecords& operator=(const TableRecords&) = delete;
  ~TableRecords() override { cache_->drop(number_); }

  int64_t size() const override { return begins_.back(); }
  Record at(int64_t index) const override { return record(index, /*with_bytes=*/true); }
  Record text_at(int64_t index) const override { return record(index, /*with_bytes=*/false); }
  uint64_t stamp() const override { return ContentHash().add(file_.stamp()).add(reader_.stamp()).value(); }

  std::vector<int64_t> blocks() const override {
    std::vector<int64_t> blocks;
    for (size_t group = 0; group + 1 < begins_.size(); ++group) {
      if (begins_[group] < begins_[group + 1]) blocks.push_back(begins_[group]);
    }
    return blocks;
  }

 private:
  Record record(int64_t index, bool with_bytes) const {
    const auto group = static_cast<size_t>(std::ranges::upper_bound(begins_, index) - begins_.begin()) - 1;
    const std::string fallback_id = fmt::format("{}:{}", stem_, index);
    Record record;
    try {
      json row = row_at(group, index - begins_[group], with_bytes);
      if (holds_utf8(row)) {
        const std::vector<UnreadCell> unread = settle_row_values(row);
        record = reader_.read(std::move(row), fallback_id);
        report(unread, record);
      } else {
        record.problem = "has a text that is not valid UTF-8";
      }
    } catch (const UserError&) {
      throw;  // of another file than was opened
    } catch (const std::runtime_error& error) {
      record.problem = fmt::format("row group {} of {} cannot be read: {}; fetch or write the file again", group,
                                   file_.path().string(), excerpt(error.what(), 300));
    }
    if (record.id.empty() && !record.problem.empty()) record.id = printable(fallback_id);
    record.place = fmt::format("row {} of row group {}", index - begins_[group], group);
    return record;
  }

  json row_at(size_t group, int64_t row, bool with_bytes) const {
    const auto rows = group_at(group, with_bytes);
    if (with_bytes) return rows->row(row);
    if (!rows->needs_bytes()) {
      json value = rows->row(row);
      if (!needs_content(value, video_column_)) return value;
    }
    return group_at(group, /*with_bytes=*/true)->row(row);
  }

  /// Cells that cannot be read are a problem of the record where they would be used, else a notice.
  void report(const std::vector<UnreadCell>& unread, Record& record) const {
    for (const UnreadCell& cell : unread) {
      if (is_read(cell.column)) {
        record.problem = fmt::format("its column \"{}\" {}", excerpt(cell.column), cell.problem);
      } else {
        record.notices.push_back(
            {.kind = fmt::format("column \"{}\" of the type {}", excerpt(cell.column), cell.type), .example = {}});
      }
    }
  }

  bool is_read(const std::string& column) const {
    return std::ranges::find(kColumns, column) != kColumns.end() ||
           std::ranges::find(kOtherFields, column) != kOtherFields.end() ||
           std::ranges::any_of(columns_, [&](const auto& mapped) { return mapped.second == column; });
  }

  RowGroupCache::Group group_at(size_t group, bool with_bytes) const {
    const RowGroupCache::Key key{.data_set = data_set_, .file = number_, .group = group, .with_bytes = with_bytes};
    return cache_->get(key, with_bytes ? group_bytes_[group] : 0, [&] {
      file_.check();
      return rows_->read(group, with_bytes);
    });
  }

  StoredFile file_;
  std::unique_ptr<const RowFile> rows_;
  RecordReader reader_;
  std::map<std::string, std::string> columns_;
  std::string video_column_;
  std::shared_ptr<RowGroupCache> cache_;
  uint64_t data_set_;
  uint64_t number_;  // of the file
  std::string stem_;
  std::vector<int64_t> begins_;  // of the row groups, and the end
  std::vector<int64_t> group_bytes_;
};

}  // namespace

std::shared_ptr<const Records> open_table(StoredFile file, std::unique_ptr<const RowFile> rows,
                                          const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                          uint64_t data_set) {
  check_columns(file.path(), *rows, settings);
  return std::make_shared<TableRecords>(std::move(file), std::move(rows), settings, std::move(cache), data_set);
}

}  // namespace vlmtrain::io

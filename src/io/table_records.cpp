#include "io/table_records.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "io/dataset_record.h"
#include "io/record_columns.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

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
        cache_(std::move(cache)),
        data_set_(data_set),
        number_(cache_->new_number()),
        stem_(file_.path().stem().string()),
        begins_{0} {
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
      json row = group_at(group, with_bytes)->row(index - begins_[group]);
      if (holds_utf8(row)) {
        record = reader_.read(std::move(row), fallback_id);
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

  RowGroupCache::Group group_at(size_t group, bool with_bytes) const {
    const RowGroupCache::Key key{.data_set = data_set_, .file = number_, .group = group, .with_bytes = with_bytes};
    return cache_->get(key, [&] {
      file_.check();
      return rows_->read(group, with_bytes);
    });
  }

  StoredFile file_;
  std::unique_ptr<const RowFile> rows_;
  RecordReader reader_;
  std::shared_ptr<RowGroupCache> cache_;
  uint64_t data_set_;
  uint64_t number_;  // of the file
  std::string stem_;
  std::vector<int64_t> begins_;  // of the row groups, and the end
};

}  // namespace

std::shared_ptr<const Records> open_table(StoredFile file, std::unique_ptr<const RowFile> rows,
                                          const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                          uint64_t data_set) {
  check_columns(file.path(), *rows, settings);
  return std::make_shared<TableRecords>(std::move(file), std::move(rows), settings, std::move(cache), data_set);
}

}  // namespace vlmtrain::io

#include "io/dataset/json_records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "io/dataset/record_json.h"
#include "io/dataset/record_offsets.h"
#include "io/files/mapped_file.h"
#include "io/files/stored_file.h"
#include "io/record/record_reader.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

class JsonRecords final : public Records {
 public:
  JsonRecords(StoredFile file, RecordOffsets offsets, const RecordSettings& settings)
      : file_(std::move(file)),
        offsets_(std::move(offsets)),
        reader_(settings, file_.path().parent_path()),
        stem_(file_.path().stem().string()) {}

  int64_t size() const override { return std::ssize(offsets_.begins); }
  uint64_t stamp() const override { return ContentHash().add(file_.stamp()).add(reader_.stamp()).value(); }

  Record at(int64_t index) const override {
    Record record = read(read_text(index), fmt::format("{}:{}", stem_, index));
    record.location = fmt::format("line {}", offsets_.line_numbers[static_cast<size_t>(index)]);
    return record;
  }

  /// Warns about columns that none of up to kMaxCheckedRecords evenly spaced records has. A
  /// misspelled name would silently drop all images. More records would delay the start of a run;
  /// fewer would miss columns that only some records have.
  void check_columns(const std::map<std::string, std::string>& columns) const {
    constexpr int64_t kMaxCheckedRecords = 1000;
    const int64_t count = std::min(size(), kMaxCheckedRecords);
    std::map<std::string, std::string> missing = count > 0 ? columns : std::map<std::string, std::string>();
    for (int64_t i = 0; i < count && !missing.empty(); ++i) {
      const auto value = parse_record_json(read_text(i * size() / count));
      if (!value || !value->is_object()) continue;
      std::erase_if(missing, [&](const auto& column) { return value->contains(column.second); });
    }
    for (const auto& [name, source_name] : missing) {
      spdlog::warn("{}: data.columns: {} has a field \"{}\", which is to be its {}; is the name right?",
                   file_.path().string(),
                   count == size() ? "no record" : fmt::format("none of {} records looked at", count),
                   make_excerpt(source_name), name);
    }
  }

 private:
  std::string read_text(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    const uint64_t begin = offsets_.begins.at(i);
    const uint64_t end = i + 1 < offsets_.begins.size() ? offsets_.begins[i + 1] : offsets_.end;
    const std::string bytes = file_.read(begin, end - begin);
    return std::string(offsets_.extract_record(i, bytes));
  }

  Record read(std::string_view text, const std::string& fallback_id) const {
    if (auto value = parse_record_json(text)) return reader_.read(*std::move(value), fallback_id);
    const JsonError error = find_json_error(mask_python_numbers(text));
    Record record;
    record.id = to_printable(fallback_id);
    record.problem = offsets_.is_json_lines
                         ? fmt::format("the line is not valid JSON at column {}: {}", error.column, error.reason)
                         : fmt::format("the record is not valid JSON at its line {}, column {}: {}", error.line,
                                       error.column, error.reason);
    return record;
  }

  StoredFile file_;
  RecordOffsets offsets_;
  RecordReader reader_;
  std::string stem_;
};

/// Returns the offsets from the index of an earlier run for large files, else by scanning the file.
/// The limit of 256 MiB is a choice: smaller files are scanned fast enough that an index file is
/// not worth its disk space.
RecordOffsets find_or_load_offsets(const StoredFile& file) {
  constexpr uint64_t kMinIndexedBytes = uint64_t{256} << 20;
  const auto index_path = file.size() < kMinIndexedBytes ? std::filesystem::path() : get_json_index_path(file.path());
  if (auto cached_offsets = read_json_index(index_path, file.stamp(), file.size())) return *std::move(cached_offsets);
  RecordOffsets offsets = find_record_offsets(MappedFile(file.path()), file.path().string());
  file.check();
  write_json_index(index_path, file.stamp(), offsets);
  return offsets;
}

}  // namespace

std::shared_ptr<const Records> open_json(const std::filesystem::path& path, const RecordSettings& settings) {
  StoredFile stored_file(path);
  RecordOffsets offsets = find_or_load_offsets(stored_file);
  auto records = std::make_shared<JsonRecords>(std::move(stored_file), std::move(offsets), settings);
  records->check_columns(settings.columns);
  return records;
}

}  // namespace vlmtrain::io

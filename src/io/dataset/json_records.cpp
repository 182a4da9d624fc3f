#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/dataset/record_files.h"
#include "io/dataset/record_offsets.h"
#include "io/record/record_reader.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

namespace {

/// A literal of Python's json module that is not JSON, and its replacements.
struct NonFiniteLiteral {
  std::string_view literal;
  std::string_view json_replacement;         // for the value of the record
  std::string_view same_length_replacement;  // any number with the length of `literal`
};
constexpr std::array kNonFiniteLiterals = std::to_array<NonFiniteLiteral>(
    {{"-Infinity", R"("-Infinity")", "-0.000000"}, {"Infinity", R"("Infinity")", "0.000000"}, {"NaN", "null", "0.0"}});

/// Replaces the literals outside of strings.
std::string replace_non_finite_literals(std::string_view text, std::string_view NonFiniteLiteral::*replacement) {
  std::string result;
  result.reserve(text.size());
  bool is_in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (is_in_string) {
      const size_t length = text[i] == '\\' ? 2 : 1;  // an escaped quote does not end the string
      is_in_string = text[i] != '"';
      result += text.substr(i, length);
      i += length;
      continue;
    }
    is_in_string = text[i] == '"';
    const auto* it = kNonFiniteLiterals.begin();
    while (it != kNonFiniteLiterals.end() && !text.substr(i).starts_with(it->literal)) ++it;
    if (it == kNonFiniteLiterals.end()) {
      result += text[i++];
    } else {
      result += (*it).*replacement;
      i += it->literal.size();
    }
  }
  return result;
}

bool may_contain_non_finite_literals(std::string_view text) {
  return text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
}

/// Keys that only records have.
constexpr std::array kRecordKeys =
    std::to_array<std::string_view>({"messages", "conversations", "texts", "question", "answer", "instruction",
                                     "output", "caption", "text", "document", "text_list"});
/// Keys of lists that a single record may have. Such a list is not a list of records.
constexpr std::array kSingleRecordListKeys =
    std::to_array<std::string_view>({"images", "image", "videos", "video", "volumes", "masks", "document", "image_info",
                                     "objects", "tools", "functions", "chosen", "rejected"});
// Keys of entries that are media or turns, not records.
constexpr std::array kMediaKeys = std::to_array<std::string_view>({"path", "bytes", "url", "type"});
constexpr std::array kTurnKeys = std::to_array<std::string_view>({"role", "from", "content", "value"});
// Keys of entries in the registries of data sets of LLaMA-Factory (dataset_info.json), InternVL and
// Qwen-VL's finetuning code.
constexpr std::array kLlamaFactoryKeys =
    std::to_array<std::string_view>({"file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name"});
constexpr std::array kInternVlKeys = std::to_array<std::string_view>({"annotation", "repeat_time", "data_augment"});
constexpr std::array kQwenKeys = std::to_array<std::string_view>({"annotation_path", "data_path"});

bool has_any_key(const RecordJson& object, std::span<const std::string_view> keys) {
  return std::ranges::any_of(keys, [&](std::string_view key) { return object.contains(key); });
}

/// Parses an object, but only the first entry of each of its lists, because the text may be a whole
/// data set. The result is not an object if the text is not JSON or nested too deeply.
RecordJson parse_first_entries(std::string_view text) {
  constexpr int kMaxDepth = 3;  // object (0), list (1), record (2), its values (3)
  bool is_first_entry = true;
  const auto should_keep_value = [&](int depth, RecordJson::parse_event_t event, const RecordJson&) {
    if (event == RecordJson::parse_event_t::array_start && depth == 1) is_first_entry = true;
    const bool is_container_start =
        event == RecordJson::parse_event_t::object_start || event == RecordJson::parse_event_t::array_start;
    if (is_container_start && depth >= kMaxDepth) return false;
    if (!is_container_start || depth != 2) return true;
    return std::exchange(is_first_entry, false);
  };
  if (is_json_too_deep(text)) return {};
  return RecordJson::parse(text, should_keep_value, /*allow_exceptions=*/false);
}

/// Describes an object with lists of records, or returns "".
std::string describe_record_lists(const RecordJson& object) {
  std::vector<std::string> keys;
  for (auto entry = object.begin(); entry != object.end(); ++entry) {
    const bool is_object_list = entry->is_array() && !entry->empty() && entry->front().is_object();
    const bool is_list_in_record = std::ranges::find(kSingleRecordListKeys, entry.key()) != kSingleRecordListKeys.end();
    if (!is_object_list || is_list_in_record) continue;
    if (!has_any_key(entry->front(), kTurnKeys) && !has_any_key(entry->front(), kMediaKeys)) {
      keys.push_back(make_excerpt(entry.key()));
    }
  }
  if (keys.empty()) return {};
  return fmt::format(
      "is one JSON object with a list of records under \"{}\"; write that list to its own file, for example with jq "
      "'.\"{}\"'",
      fmt::join(keys, "\", \""), keys.front());
}

/// Describes an object whose values are all objects, or returns "".
std::string describe_keyed_records(const RecordJson& object) {
  const RecordJson& first_value = object.front();
  if (has_any_key(first_value, kLlamaFactoryKeys)) {
    return fmt::format(
        "is a registry of data sets of LLaMA-Factory (dataset_info.json), not data; give the data file itself in {}, "
        "and its columns in {}",
        keys::data::kTrain, keys::data::kColumns);
  }
  if (has_any_key(first_value, kInternVlKeys)) {
    return fmt::format(
        "is a registry of data sets of InternVL's trainer, not data; give its files in {}: {{path: ANNOTATION, "
        "image_root: ROOT, repeat: REPEAT_TIME}} for each",
        keys::data::kTrain);
  }
  if (has_any_key(first_value, kQwenKeys)) {
    return fmt::format(
        "is a registry of data sets of Qwen-VL's trainer, not data; give its files in {}: {{path: ANNOTATION_PATH, "
        "image_root: DATA_PATH}} for each",
        keys::data::kTrain);
  }
  if (!has_any_key(first_value, kRecordKeys)) return {};
  return "is one JSON object, with a record under each of its keys; write the records as a list, for example with jq "
         "'[.[]]', or one per line";
}

class JsonRecords final : public Records {
 public:
  JsonRecords(DataFile file, RecordOffsets offsets, const RecordSettings& settings)
      : file_(std::move(file)),
        offsets_(std::move(offsets)),
        reader_(settings, file_.path().parent_path()),
        file_stem_(file_.path().stem().string()) {}

  int64_t size() const override { return std::ssize(offsets_.begin_offsets); }
  uint64_t version_hash() const override {
    return ContentHash().add(file_.version_hash()).add(reader_.version_hash()).value();
  }

  Record at(int64_t index) const override {
    Record record = parse_record(read_record_text(index), fmt::format("{}:{}", file_stem_, index));
    record.location = fmt::format("line {}", offsets_.line_numbers[static_cast<size_t>(index)]);
    return record;
  }

  /// Logs a warning for each mapped column that none of kMaxCheckedRecords evenly spaced records
  /// has: a misspelled name would silently drop all images. The limit is a choice. More records
  /// would delay the start of a run; fewer would miss columns that only some records have.
  void warn_about_missing_columns(const std::map<std::string, std::string>& columns) const {
    constexpr int64_t kMaxCheckedRecords = 1000;
    const int64_t num_checked_records = std::min(size(), kMaxCheckedRecords);
    std::map<std::string, std::string> missing_columns =
        num_checked_records > 0 ? columns : std::map<std::string, std::string>();
    for (int64_t i = 0; i < num_checked_records && !missing_columns.empty(); ++i) {
      const auto value = parse_record_json(read_record_text(i * size() / num_checked_records));
      if (!value || !value->is_object()) continue;
      std::erase_if(missing_columns, [&](const auto& column) { return value->contains(column.second); });
    }
    for (const auto& [name, source_name] : missing_columns) {
      spdlog::warn(
          "{}: {}: {} has a field \"{}\", which is mapped to {}; check the name", file_.path().string(),
          keys::data::kColumns,
          num_checked_records == size() ? "no record" : fmt::format("none of {} checked records", num_checked_records),
          make_excerpt(source_name), name);
    }
  }

 private:
  std::string read_record_text(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    const uint64_t begin = offsets_.begin_offsets.at(i);
    const uint64_t end = i + 1 < offsets_.begin_offsets.size() ? offsets_.begin_offsets[i + 1] : offsets_.end;
    const std::string bytes = file_.read(begin, end - begin);
    return std::string(offsets_.extract_record(i, bytes));
  }

  Record parse_record(std::string_view text, const std::string& fallback_id) const {
    if (auto value = parse_record_json(text)) return reader_.read(*std::move(value), fallback_id);
    const JsonError error = find_json_error(zero_non_finite_literals(text));
    Record record;
    record.id = to_printable(fallback_id);
    record.problem = offsets_.is_json_lines
                         ? fmt::format("the line is not valid JSON at column {}: {}", error.column, error.reason)
                         : fmt::format("the record is not valid JSON at its line {}, column {}: {}", error.line,
                                       error.column, error.reason);
    return record;
  }

  DataFile file_;
  RecordOffsets offsets_;
  RecordReader reader_;
  std::string file_stem_;
};

/// Returns the offsets of records: for large files from the index of an earlier run, if it is
/// valid, else by scanning the file. The limit of 256 MiB is a choice: scanning smaller files is so
/// fast that an index is not worth its disk space.
RecordOffsets load_or_find_offsets(const DataFile& file) {
  constexpr uint64_t kMinIndexedFileBytes = uint64_t{256} << 20;
  const auto index_path =
      file.size() < kMinIndexedFileBytes ? std::filesystem::path() : get_json_index_path(file.path());
  if (auto cached_offsets = read_json_index(index_path, file.version_hash(), file.size()))
    return *std::move(cached_offsets);
  RecordOffsets offsets = find_record_offsets(MappedFile(file.path()), file.path().string());
  file.check_unchanged();
  write_json_index(index_path, file.version_hash(), offsets);
  return offsets;
}

}  // namespace

std::optional<RecordJson> parse_record_json(std::string_view text) {
  auto value = try_parse_record_json(text);
  if (value || !may_contain_non_finite_literals(text)) return value;
  return try_parse_record_json(replace_non_finite_literals(text, &NonFiniteLiteral::json_replacement));
}

std::string zero_non_finite_literals(std::string_view text) {
  if (!may_contain_non_finite_literals(text)) return std::string(text);
  return replace_non_finite_literals(text, &NonFiniteLiteral::same_length_replacement);
}

std::string describe_wrapped_records(std::string_view text) {
  const RecordJson object = parse_first_entries(text);
  if (!object.is_object() || object.empty() || has_any_key(object, kRecordKeys)) return {};
  const auto is_object = [](const RecordJson& value) { return value.is_object() && !value.empty(); };
  return std::ranges::all_of(object, is_object) ? describe_keyed_records(object) : describe_record_lists(object);
}

std::shared_ptr<const Records> open_json_records(const std::filesystem::path& path, const RecordSettings& settings) {
  DataFile data_file(path);
  RecordOffsets offsets = load_or_find_offsets(data_file);
  auto records = std::make_shared<JsonRecords>(std::move(data_file), std::move(offsets), settings);
  records->warn_about_missing_columns(settings.columns);
  return records;
}

}  // namespace vlmtrain::io

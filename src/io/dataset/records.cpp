#include "vlmtrain/io/records.h"

#include <glob.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/dataset/record_files.h"
#include "io/dataset/row_group_cache.h"
#include "io/dataset/tar_archive.h"
#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {

std::vector<int64_t> SubsetRecords::block_starts() const {
  if (!std::ranges::is_sorted(record_indices_)) return {};
  std::vector<int64_t> starts;
  // A block of the base without selected records has the same start as the next one.
  for (const int64_t block_start : base_records_->block_starts()) {
    const int64_t start = std::ranges::lower_bound(record_indices_, block_start) - record_indices_.begin();
    if (start < size() && (starts.empty() || starts.back() < start)) starts.push_back(start);
  }
  return starts;
}

uint64_t SubsetRecords::version_hash() const {
  const uint64_t base_version_hash = base_records_->version_hash();
  if (base_version_hash == 0) return 0;
  ContentHash hash;
  hash.add(base_version_hash);
  for (const int64_t index : record_indices_) hash.add(static_cast<uint64_t>(index));
  return hash.value();
}

ConcatRecords::ConcatRecords(std::vector<NamedRecords> parts) : parts_(std::move(parts)), part_starts_{0} {
  part_starts_.reserve(parts_.size() + 1);
  for (const NamedRecords& part : parts_) part_starts_.push_back(part_starts_.back() + part.records->size());
}

Record ConcatRecords::at(int64_t index) const {
  const size_t part_index = find_part_index(index);
  return add_part_name(parts_[part_index].records->at(index - part_starts_[part_index]), part_index);
}

Record ConcatRecords::at_without_media_bytes(int64_t index) const {
  const size_t part_index = find_part_index(index);
  return add_part_name(parts_[part_index].records->at_without_media_bytes(index - part_starts_[part_index]),
                       part_index);
}

std::vector<int64_t> ConcatRecords::block_starts() const {
  std::vector<int64_t> starts;
  bool has_blocks = false;
  for (size_t part_index = 0; part_index < parts_.size(); ++part_index) {
    const auto block_starts = parts_[part_index].records->block_starts();
    has_blocks = has_blocks || !block_starts.empty();
    // A file without blocks is one block, unless no file has blocks.
    if (block_starts.empty() && part_starts_[part_index] < part_starts_[part_index + 1])
      starts.push_back(part_starts_[part_index]);
    for (const int64_t block_start : block_starts) starts.push_back(part_starts_[part_index] + block_start);
  }
  return has_blocks ? starts : std::vector<int64_t>{};
}

uint64_t ConcatRecords::version_hash() const {
  ContentHash hash;
  for (const NamedRecords& part : parts_) {
    const uint64_t version_hash = part.records->version_hash();
    if (version_hash == 0) return 0;
    hash.add(version_hash);
  }
  return hash.value();
}

size_t ConcatRecords::find_part_index(int64_t index) const {
  return static_cast<size_t>(std::ranges::upper_bound(part_starts_, index) - part_starts_.begin()) - 1;
}

Record ConcatRecords::add_part_name(Record record, size_t part_index) const {
  record.location = fmt::format("{}, {}", parts_[part_index].name, record.location);
  return record;
}

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kShardExtensions{".parquet", ".tar", ".jsonl"};

/// Throws data_error if the braces of a glob pattern expand to too many patterns: each {a,b}
/// doubles their number. Nested braces are overestimated.
void check_num_patterns(const std::string& pattern) {
  constexpr int64_t kMaxPatterns = 10'000;  // a choice, not measured
  int64_t num_patterns = 1;
  std::vector<int64_t> alternative_counts;  // number in each open brace, innermost last
  for (const char c : pattern) {
    if (c == '{') alternative_counts.push_back(1);
    if (c == ',' && !alternative_counts.empty()) ++alternative_counts.back();
    if (c != '}' || alternative_counts.empty()) continue;
    num_patterns *= alternative_counts.back();
    alternative_counts.pop_back();
    if (num_patterns > kMaxPatterns) {
      throw data_error("{}: its braces expand to more than {} patterns; give a folder, or use *", make_excerpt(pattern),
                       kMaxPatterns);
    }
  }
}

/// Returns the files that match a pattern. Throws data_error if none does or a folder is
/// unreadable.
std::vector<fs::path> expand_pattern(const fs::path& pattern) {
  check_num_patterns(pattern.native());
  glob_t matches{};
  // A missing folder has no matches. An unreadable folder might have some, so it is an error.
  thread_local int read_error = 0;  // glob() passes no data to the handler
  const auto handle_glob_error = [](const char* /*folder*/, int error) {
    read_error = error;
    return error == ENOENT || error == ENOTDIR ? 0 : 1;
  };
  const int status = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, handle_glob_error, &matches);
  std::vector<fs::path> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (status != 0 && status != GLOB_NOMATCH) {
    throw data_error("{}: a folder of this pattern cannot be read ({}); check its permissions", pattern.string(),
                     std::generic_category().message(status == GLOB_NOSPACE ? ENOMEM : read_error));
  }
  std::erase_if(files, [](const fs::path& file) {
    std::error_code error;
    return fs::is_directory(file, error);
  });
  if (files.empty()) {
    throw data_error(
        "{}: matches no file; use * for any part of a name without a slash (docs/reference/data-formats.md)",
        pattern.string());
  }
  return files;
}

/// Returns the splits that file names begin with, as those of Hugging Face data sets
/// (train-00000-of-00008.parquet). "valid", "val" and "dev" are common names of validation splits.
std::vector<std::string> find_split_names(const std::vector<fs::path>& files) {
  std::vector<std::string> splits;
  for (const char* const split : {"train", "validation", "valid", "val", "test", "dev"}) {
    const auto belongs_to_split = [&](const fs::path& file) {
      const std::string name = file.filename().string();
      return name.starts_with(split + std::string("-")) || file.stem() == split;
    };
    if (std::ranges::any_of(files, belongs_to_split)) splits.emplace_back(split);
  }
  return splits;
}

/// Returns the data files of a folder, in any order. Throws data_error if there are none, or if
/// they have several formats or splits.
std::vector<fs::path> find_shards(const fs::path& folder) {
  std::array<std::vector<fs::path>, kShardExtensions.size()> shards;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().native().starts_with('.')) continue;
    const auto* const extension =
        std::ranges::find(kShardExtensions, to_lower_ascii(entry->path().extension().native()));
    if (extension != kShardExtensions.end()) {
      shards[static_cast<size_t>(extension - kShardExtensions.begin())].push_back(entry->path());
    }
  }
  if (error) throw make_read_error(folder, error.value());
  const auto is_non_empty = [](const auto& files) { return !files.empty(); };
  const auto first_non_empty_shards = std::ranges::find_if(shards, is_non_empty);
  if (first_non_empty_shards == shards.end()) {
    throw data_error("{}: is a folder without {} files; give a file, a pattern such as {}, or the folder of the shards",
                     folder.string(), fmt::join(kShardExtensions, ", "), (folder / "data/*.parquet").string());
  }
  if (std::ranges::count_if(shards, is_non_empty) > 1) {
    throw data_error("{}: is a folder with data of several formats; give a pattern, such as {}", folder.string(),
                     (folder / "*.parquet").string());
  }
  if (const auto splits = find_split_names(*first_non_empty_shards); splits.size() > 1) {
    throw data_error(
        "{}: is a folder with the splits {}; choose one, such as {}", folder.string(), fmt::join(splits, ", "),
        (folder / (splits.front() + "-*" + first_non_empty_shards->front().extension().string())).string());
  }
  return *first_non_empty_shards;
}

/// Returns the cache of all data sets of the process, so that training and evaluation share one
/// bound. The bound is a choice (docs/reference/data-formats.md), not measured: with a smaller one, large row groups
/// are read again more often; a larger one takes host memory from the run.
std::shared_ptr<RowGroupCache> get_row_group_cache() {
  constexpr int64_t kMaxCacheBytes = int64_t{256} << 20;
  static const auto cache = std::make_shared<RowGroupCache>(kMaxCacheBytes);
  return cache;
}

/// The columns of the files of a data set, for a warning about columns that some files lack.
class ShardColumns {
 public:
  void add(std::filesystem::path file, std::vector<std::string> columns) {
    shards_.push_back({.file = std::move(file), .columns = std::move(columns)});
  }

  /// Logs a warning for each column that some files have and others do not. `data_set` is its
  /// name for messages.
  void warn_about_missing_columns(const std::string& data_set) const {
    std::set<std::string> all_columns;
    for (const Shard& shard : shards_) all_columns.insert(shard.columns.begin(), shard.columns.end());
    for (const std::string& column : all_columns) {
      const auto lacks_column = [&](const Shard& shard) {
        return std::ranges::find(shard.columns, column) == shard.columns.end();
      };
      const auto count = std::ranges::count_if(shards_, lacks_column);
      if (count == 0) continue;
      spdlog::warn("{}: {} of {} files have no column \"{}\", such as {}; their samples are read without it",
                   to_printable(data_set), count, shards_.size(), make_excerpt(column),
                   to_printable(std::ranges::find_if(shards_, lacks_column)->file.filename().string()));
    }
  }

 private:
  struct Shard {
    std::filesystem::path file;
    std::vector<std::string> columns;
  };
  std::vector<Shard> shards_;
};

/// Opens the files of one data set, whatever their format, and collects their columns.
class RecordsOpener {
 public:
  explicit RecordsOpener(const RecordSettings& settings) : settings_(settings) {}

  const ShardColumns& columns() const { return shard_columns_; }

  std::shared_ptr<const Records> open_file(const std::filesystem::path& file) {
    DataFile data_file(file);
    constexpr uint64_t kNumMagicBytes = 512;  // size of a tar header, whose signature is at byte 257
    const std::string first_bytes = data_file.read(0, std::min(data_file.size(), kNumMagicBytes));
    if (is_tar(first_bytes)) return open_tar_records(file, settings_);
    // "PAR1" is the signature of Parquet. JSON has none; open_json_records() reports other formats.
    if (!first_bytes.starts_with("PAR1")) return open_json_records(file, settings_);
    auto row_file = open_row_file(file);
    shard_columns_.add(file, row_file->columns());
    return open_table_records(std::move(data_file), std::move(row_file), settings_, get_row_group_cache(),
                              data_set_id_);
  }

 private:
  const RecordSettings& settings_;
  ShardColumns shard_columns_;
  uint64_t data_set_id_ = get_row_group_cache()->make_unique_id();
};

}  // namespace

std::vector<fs::path> find_data_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  std::vector<fs::path> files;
  if (fs::is_directory(status)) {
    files = find_shards(path);
  } else if (fs::exists(status) || path.native().find_first_of("*?[{") == std::string::npos) {
    return {path};
  } else {
    files = expand_pattern(path);
  }
  std::ranges::sort(files, precedes_in_natural_order, [](const fs::path& file) { return file.string(); });
  return files;
}

std::shared_ptr<const Records> open_records(const fs::path& path, const RecordSettings& settings) {
  return open_records(find_data_files(path), path.string(), settings);
}

std::shared_ptr<const Records> open_records(const std::vector<fs::path>& files, const std::string& name,
                                            const RecordSettings& settings) {
  RecordsOpener records_opener(settings);
  if (files.size() == 1) return records_opener.open_file(files.front());
  std::vector<ConcatRecords::NamedRecords> parts;
  parts.reserve(files.size());
  for (const auto& file : files)
    parts.push_back({to_printable(file.filename().string()), records_opener.open_file(file)});
  records_opener.columns().warn_about_missing_columns(name);
  return std::make_shared<ConcatRecords>(std::move(parts));
}

RowGroupMemoryStats get_row_group_memory_stats() {
  return get_row_group_cache()->get_memory_stats();
}

std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root) {
  const auto records = open_records(path, {.image_root = image_root});
  std::vector<Record> result;
  result.reserve(static_cast<size_t>(records->size()));
  for (int64_t i = 0; i < records->size(); ++i) result.push_back(records->at(i));
  return result;
}

}  // namespace vlmtrain::io

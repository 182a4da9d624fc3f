#include "vlmtrain/io/dataset_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "io/dataset/data_files.h"
#include "io/dataset/json_records.h"
#include "io/dataset/row_group_cache.h"
#include "io/dataset/table_records.h"
#include "io/dataset/tar_archive.h"
#include "io/dataset/tar_records.h"
#include "io/files/stored_file.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

namespace {

/// Returns the cache of all data sets of the process, for training and evaluation, so that they
/// share one bound. The bound is a choice (docs/data.md), not measured: a smaller one reads large
/// row groups again more often, a larger one takes host memory from the run.
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

  /// Logs a warning for each column that some files have and others do not. `data_set` is a path
  /// for messages.
  void warn(const std::filesystem::path& data_set) const {
    std::set<std::string> all;
    for (const Shard& shard : shards_) all.insert(shard.columns.begin(), shard.columns.end());
    for (const std::string& column : all) {
      const auto is_missing = [&](const Shard& shard) {
        return std::ranges::find(shard.columns, column) == shard.columns.end();
      };
      const auto count = std::ranges::count_if(shards_, is_missing);
      if (count == 0) continue;
      spdlog::warn("{}: {} of {} files have no column \"{}\", such as {}; their samples are read without it",
                   to_printable(data_set.string()), count, shards_.size(), make_excerpt(column),
                   to_printable(std::ranges::find_if(shards_, is_missing)->file.filename().string()));
    }
  }

 private:
  struct Shard {
    std::filesystem::path file;
    std::vector<std::string> columns;
  };
  std::vector<Shard> shards_;
};

class RecordsOpener {
 public:
  explicit RecordsOpener(const RecordSettings& settings) : settings_(settings) {}

  const ShardColumns& columns() const { return columns_; }

  std::shared_ptr<const Records> open(const std::filesystem::path& file) {
    StoredFile data_file(file);
    constexpr uint64_t kMagicBytes = 512;  // a tar header
    const std::string first_bytes = data_file.read(0, std::min(data_file.size(), kMagicBytes));
    if (is_tar(first_bytes)) return open_tar(file, settings_);
    if (!first_bytes.starts_with("PAR1")) return open_json(file, settings_);
    auto row_file = open_row_file(file);
    columns_.add(file, row_file->columns());
    return open_table(std::move(data_file), std::move(row_file), settings_, get_row_group_cache(), data_set_);
  }

 private:
  const RecordSettings& settings_;
  ShardColumns columns_;
  uint64_t data_set_ = get_row_group_cache()->make_id();
};

}  // namespace

std::shared_ptr<const Records> open_records(const std::filesystem::path& path, const RecordSettings& settings) {
  const std::vector<std::filesystem::path> files = find_data_files(path);
  RecordsOpener opener(settings);
  if (files.size() == 1) return opener.open(files.front());
  std::vector<ConcatRecords::NamedRecords> parts;
  parts.reserve(files.size());
  for (const auto& file : files) parts.push_back({to_printable(file.filename().string()), opener.open(file)});
  opener.columns().warn(path);
  return std::make_shared<ConcatRecords>(std::move(parts));
}

RowGroupMemory get_row_group_memory() {
  return get_row_group_cache()->memory();
}

std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root) {
  const auto records = open_records(path, {.image_root = image_root});
  std::vector<Record> result;
  result.reserve(static_cast<size_t>(records->size()));
  for (int64_t i = 0; i < records->size(); ++i) result.push_back(records->at(i));
  return result;
}

}  // namespace vlmtrain::io

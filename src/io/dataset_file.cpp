#include "vlmtrain/io/dataset_file.h"

#include <algorithm>
#include <utility>

#include "io/data_files.h"
#include "io/joined_records.h"
#include "io/json_records.h"
#include "io/row_file_plugin.h"
#include "io/row_group_cache.h"
#include "io/shard_columns.h"
#include "io/stored_file.h"
#include "io/table_records.h"
#include "io/tar_members.h"
#include "io/tar_records.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/row_group_memory.h"

namespace vlmtrain::io {
namespace {

/// One bound for all data sets that a process has open: those to train on and to evaluate on, and several of them.
std::shared_ptr<RowGroupCache> row_groups() {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  static const auto cache = std::make_shared<RowGroupCache>(kMostBytes);
  return cache;
}

class Opener {
 public:
  explicit Opener(const RecordSettings& settings) : settings_(settings) {}

  const ShardColumns& columns() const { return columns_; }

  std::shared_ptr<const Records> open(const std::filesystem::path& file) {
    StoredFile stored(file);
    constexpr uint64_t kLongestMagic = 512;
    const std::string begin = stored.read(0, std::min(stored.size(), kLongestMagic));
    if (is_tar(begin)) return open_tar(file, settings_);
    if (!begin.starts_with("PAR1")) return open_json(file, settings_);
    auto rows = open_row_file(file);
    columns_.add(file, rows->columns());
    return open_table(std::move(stored), std::move(rows), settings_, row_groups(), data_set_);
  }

 private:
  const RecordSettings& settings_;
  ShardColumns columns_;
  uint64_t data_set_ = row_groups()->new_number();
};

}  // namespace

std::shared_ptr<const Records> open_records(const std::filesystem::path& path, const RecordSettings& settings) {
  const std::vector<std::filesystem::path> files = data_files(path);
  Opener opener(settings);
  if (files.size() == 1) return opener.open(files.front());
  std::vector<JoinedRecords::Part> parts;
  parts.reserve(files.size());
  for (const auto& file : files) parts.push_back({printable(file.filename().string()), opener.open(file)});
  opener.columns().warn(path);
  return std::make_shared<JoinedRecords>(std::move(parts));
}

RowGroupMemory row_group_memory() {
  return row_groups()->memory();
}

std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root) {
  const auto records = open_records(path, {.image_root = image_root});
  std::vector<Record> all;
  all.reserve(static_cast<size_t>(records->size()));
  for (int64_t i = 0; i < records->size(); ++i) all.push_back(records->at(i));
  return all;
}

}  // namespace vlmtrain::io

#include "io/shard_columns.h"

#include <algorithm>
#include <set>
#include <utility>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {

void ShardColumns::add(std::filesystem::path file, std::vector<std::string> columns) {
  shards_.push_back({.file = std::move(file), .columns = std::move(columns)});
}

void ShardColumns::warn(const std::filesystem::path& data_set) const {
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

}  // namespace vlmtrain::io

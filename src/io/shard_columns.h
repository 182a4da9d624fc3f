#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// The columns of the files of one data set: a file without a column that others have is read without its values.
class ShardColumns {
 public:
  void add(std::filesystem::path file, std::vector<std::string> columns);
  /// Logs a warning for each column that some files have and others do not. `data_set` is its path, for messages.
  void warn(const std::filesystem::path& data_set) const;

 private:
  struct Shard {
    std::filesystem::path file;
    std::vector<std::string> columns;
  };
  std::vector<Shard> shards_;
};

}  // namespace vlmtrain::io

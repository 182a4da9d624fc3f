#include "vlmtrain/report/json_lines.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

void JsonLinesFollower::read(const std::function<void(const nlohmann::json& object)>& callback) {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return;
  if (const auto kind = describe_non_regular_file(path_); !kind.empty()) {
    throw data_error("{} is {}; replace it with a regular file", path_.string(), kind);
  }
  if (status.st_size <= read_offset_) return;
  inode_ = status.st_ino;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(read_offset_);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    read_offset_ += std::ssize(line) + 1;
    const auto json = io::try_parse_json(line).value_or(nlohmann::json());
    if (json.is_object()) callback(json);
  }
}

bool JsonLinesFollower::was_replaced() const {
  if (inode_ == 0) return false;
  struct stat status {};
  return stat(path_.c_str(), &status) != 0 || status.st_ino != inode_ || status.st_size < read_offset_;
}

void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& object)>& callback) {
  JsonLinesFollower(path).read(callback);
}

}  // namespace vlmtrain::report

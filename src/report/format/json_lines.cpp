#include "vlmtrain/report/json_lines.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

void JsonLinesFollower::read(const std::function<void(const nlohmann::json& object)>& callback) {
  struct stat status {};
  open_error_.clear();
  if (stat(path_.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) open_error_ = std::generic_category().message(errno);
    return;
  }
  if (const auto kind = describe_non_regular_file(path_); !kind.empty()) {
    throw data_error("{}: is {}; replace it with a regular file", path_.string(), kind);
  }
  if (status.st_size <= read_offset_) return;
  inode_ = status.st_ino;
  errno = 0;
  std::ifstream file(path_, std::ios::binary);
  if (!file) {
    open_error_ = std::generic_category().message(errno);
    return;
  }
  file.seekg(read_offset_);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    read_offset_ += std::ssize(line) + 1;
    ++num_lines_;
    const auto json = io::try_parse_json(line).value_or(nlohmann::json());
    if (json.is_object()) {
      callback(json);
    } else if (line.find_first_not_of(" \r\t") != std::string::npos && num_damaged_lines_++ == 0) {
      first_damaged_line_ = num_lines_;
    }
  }
}

std::string JsonLinesFollower::describe_problem() const {
  const std::string file = to_printable(path_.string());
  if (!open_error_.empty())
    return fmt::format("{}: cannot be read ({}), so the report omits it; check its permissions", file, open_error_);
  if (num_damaged_lines_ == 0) return {};
  if (num_damaged_lines_ == 1)
    return fmt::format("{}: line {} is damaged; the report omits it", file, first_damaged_line_);
  return fmt::format("{}: {} lines are damaged, the first is line {}; the report omits them", file, num_damaged_lines_,
                     first_damaged_line_);
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

#include "vlmtrain/io/file.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw data_error("{} is a folder; a file is wanted here", path.string());
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw data_error("cannot read {}: {}; check the path and its permissions", path.string(),
                     std::generic_category().message(errno));
  }
  return content;
}

}  // namespace vlmtrain::io

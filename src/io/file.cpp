#include "vlmtrain/io/file.h"

#include <cerrno>
#include <fstream>
#include <iterator>

#include "io/read_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/io/lfs_pointer.h"

namespace vlmtrain::io {

std::string read_file(const std::filesystem::path& path) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{} is {}; a file is wanted here", path.string(), kind);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw read_error(path, errno);
  }
  refuse_lfs_pointer(path, content);
  return content;
}

}  // namespace vlmtrain::io

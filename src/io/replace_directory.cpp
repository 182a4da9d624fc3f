#include "io/replace_directory.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>

#include "io/temporary_name.h"
#include "io/write_error.h"

namespace vlmtrain::io {

bool exchange_names(const std::filesystem::path& left, const std::filesystem::path& right) {
  if (renameat2(AT_FDCWD, left.c_str(), AT_FDCWD, right.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    return false;
  }
  throw write_error(right, errno, 0);
}

std::filesystem::path set_aside(const std::filesystem::path& final_path) {
  std::filesystem::path aside = temporary_path(final_path, TemporaryKind::kSetAside);
  if (rename(final_path.c_str(), aside.c_str()) != 0) {
    throw write_error(final_path, errno, 0);
  }
  return aside;
}

std::filesystem::path replace_in_two_steps(const std::filesystem::path& fresh,
                                           const std::filesystem::path& final_path) {
  std::filesystem::path aside = set_aside(final_path);
  if (rename(fresh.c_str(), final_path.c_str()) != 0) {
    const int error = errno;
    std::error_code ignored;
    std::filesystem::rename(aside, final_path, ignored);
    throw write_error(final_path, error, 0);
  }
  return aside;
}

}  // namespace vlmtrain::io

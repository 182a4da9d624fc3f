#include "io/replace_directory.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>

#include "io/temporary_name.h"
#include "io/write_error.h"

namespace vlmtrain::io {

bool exchange_names(const std::filesystem::path& first, const std::filesystem::path& second) {
  if (renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    return false;
  }
  throw write_error(second, errno, 0);
}

std::filesystem::path move_aside(const std::filesystem::path& final_path) {
  std::filesystem::path backup = make_temp_path(final_path, TempPathKind::kBackup);
  if (rename(final_path.c_str(), backup.c_str()) != 0) {
    throw write_error(final_path, errno, 0);
  }
  return backup;
}

std::filesystem::path replace_in_two_steps(const std::filesystem::path& new_folder,
                                           const std::filesystem::path& final_path) {
  std::filesystem::path backup = move_aside(final_path);
  if (rename(new_folder.c_str(), final_path.c_str()) != 0) {
    const int error = errno;
    std::error_code ignored;
    std::filesystem::rename(backup, final_path, ignored);
    throw write_error(final_path, error, 0);
  }
  return backup;
}

}  // namespace vlmtrain::io

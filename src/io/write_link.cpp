#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/temporary_name.h"
#include "io/unfinished_paths.h"
#include "io/write_error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {

void write_link(const std::filesystem::path& path, const std::filesystem::path& target) {
  const auto temporary = temporary_path(path, TemporaryKind::kNew);
  int error = 0;
  note_unfinished(temporary, [&] { error = symlink(target.c_str(), temporary.c_str()) == 0 ? 0 : errno; });
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  forget_unfinished(temporary);
  if (error == 0) return sync_path(folder_of(path), path);
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw write_error(path, error, 0);
}

}  // namespace vlmtrain::io

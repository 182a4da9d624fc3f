#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/temporary_name.h"
#include "io/unfinished_paths.h"
#include "io/write_error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {

void write_symlink(const std::filesystem::path& path, const std::filesystem::path& target) {
  const auto temp_path = make_temp_path(path, TempPathKind::kNew);
  int error = 0;
  register_temp_path(temp_path, [&] { error = symlink(target.c_str(), temp_path.c_str()) == 0 ? 0 : errno; });
  if (error == 0 && rename(temp_path.c_str(), path.c_str()) != 0) error = errno;
  unregister_temp_path(temp_path);
  if (error == 0) return sync_to_disk(get_parent_folder(path), path);
  std::error_code ignored;
  std::filesystem::remove(temp_path, ignored);
  throw write_error(path, error, 0);
}

}  // namespace vlmtrain::io

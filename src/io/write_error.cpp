#include "io/write_error.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace vlmtrain::io {
namespace {

int64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) {
    return 0;
  }
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

}  // namespace

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

UserError write_error(const std::filesystem::path& path, int error, int64_t wanted_bytes) {
  const std::string reason = std::generic_category().message(error);
  const std::string folder = folder_of(path).string();
  switch (error) {
    case ENOSPC:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes and {} bytes are free in {}; make room there, or write to "
          "another disk",
          path.string(), reason, wanted_bytes, free_bytes(folder), folder);
    case EDQUOT:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes; remove files that count against your quota in {}, or write to "
          "another disk",
          path.string(), reason, wanted_bytes, folder);
    case EFBIG:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes; raise the limit on a file's size (ulimit -f), or write to a "
          "file system that holds larger files",
          path.string(), reason, wanted_bytes);
    case ENOENT:
      return run_error("cannot write {}: {}: create the folder {} first", path.string(), reason, folder);
    case ENOTDIR:
      return run_error("cannot write {}: {}: a file stands where {} has a folder; move it away", path.string(), reason,
                       folder);
    case EMFILE:
    case ENFILE:
      return run_error("cannot write {}: {}: raise the limit on open files (ulimit -n)", path.string(), reason);
    case EACCES:
    case EPERM:
    case EROFS:
      return run_error("cannot write {}: {}: choose a folder in which you may write", path.string(), reason);
    default:
      return run_error("cannot write {}: {}", path.string(), reason);
  }
}

void sync_path(const std::filesystem::path& path, const std::filesystem::path& named) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw write_error(named, errno, 0);
  }
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (error != 0 && error != EINVAL) {
    throw write_error(named, error, 0);
  }
}

}  // namespace vlmtrain::io

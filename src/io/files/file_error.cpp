#include "io/files/file_error.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "io/files/temp_path.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {

namespace {

/// Returns the space that this user may fill, or nothing if the file system does not report it. The
/// superuser may also use the reserved blocks.
std::optional<int64_t> get_free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  const auto free_blocks = geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<int64_t>(free_blocks) * static_cast<int64_t>(status.f_frsize);
}

/// Replaces temporary names in `path` by the final names that users know, for messages.
std::filesystem::path replace_temp_names(const std::filesystem::path& path) {
  std::filesystem::path destination_path;
  for (const auto& component : path) {
    const auto temp_path = parse_temp_path(component);
    destination_path /= temp_path ? temp_path->destination_path : component;
  }
  return destination_path;
}

}  // namespace

UserError make_read_error(const std::filesystem::path& path, int error) {
  // The process lacks resources, and the file may be valid: not a data_error.
  if (error == ENOMEM || error == EMFILE || error == ENFILE) {
    return run_error(
        "cannot read {}: {}; raise the limits of the process (ulimit -v, ulimit -n), or free memory and open files",
        path.string(), std::generic_category().message(error));
  }
  const auto hint = [&]() -> std::string {
    if (error != ENOENT) return "check the path and its permissions";
    if (path.string().starts_with("~")) return "the shell expands ~ only at the start of a word; write the full path";
    if (path.extension().empty() && is_hub_model_id(path.string())) {
      return "if it is a name on the Hugging Face Hub, download it first (`hf download`), then give the file";
    }
    return "check the path and its permissions";
  };
  return data_error("cannot read {}: {}; {}", path.string(), std::generic_category().message(error), hint());
}

std::filesystem::path get_parent_folder(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

UserError make_write_error(const std::filesystem::path& target_path, int error, int64_t requested_bytes) {
  const std::string reason = std::generic_category().message(error);
  const std::filesystem::path path = replace_temp_names(target_path);
  const std::string folder = get_parent_folder(path).string();
  switch (error) {
    case ENOSPC:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes and {} bytes are free in {}; free space there, or write to "
          "another disk",
          path.string(), reason, requested_bytes, get_free_disk_bytes(get_parent_folder(target_path)).value_or(0),
          folder);
    case EDQUOT:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes; remove files that count toward your quota in {}, or write to "
          "another disk",
          path.string(), reason, requested_bytes, folder);
    case EFBIG:
      return run_error(
          "cannot write {}: {}: the file needs {} bytes; raise the file size limit (ulimit -f), or write to a file "
          "system that supports larger files",
          path.string(), reason, requested_bytes);
    case ENOENT:
      // The folder may exist in a file system without files of the user, such as /proc.
      if (std::error_code ignored_error; std::filesystem::is_directory(folder, ignored_error)) {
        return run_error("cannot write {}: {}: choose a folder that you can write to", path.string(), reason);
      }
      return run_error("cannot write {}: {}: create the folder {} first", path.string(), reason, folder);
    case ENOTDIR:
      return run_error("cannot write {}: {}: {} contains a file in place of a folder; move it away", path.string(),
                       reason, folder);
    case EMFILE:
    case ENFILE:
      return run_error("cannot write {}: {}: raise the limit on open files (ulimit -n)", path.string(), reason);
    case EACCES:
    case EPERM:
    case EROFS:
      return run_error("cannot write {}: {}: choose a folder that you can write to", path.string(), reason);
    default:
      return run_error("cannot write {}: {}", path.string(), reason);
  }
}

void check_free_space(const std::filesystem::path& folder, int64_t needed_bytes) {
  const auto free_bytes = get_free_disk_bytes(folder);
  if (!free_bytes || *free_bytes >= needed_bytes) return;
  const std::string destination_path = replace_temp_names(folder).string();
  throw run_error(
      "cannot write {}: {}: it needs {} bytes and {} bytes are free, {} too few; free space, or write to another disk",
      destination_path, std::generic_category().message(ENOSPC), needed_bytes, *free_bytes, needed_bytes - *free_bytes);
}

void sync_to_disk(const std::filesystem::path& path, const std::filesystem::path& reported_path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw make_write_error(reported_path, errno, 0);
  }
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  // Some file systems return EINVAL for folders, which they cannot flush.
  if (error != 0 && error != EINVAL) {
    throw make_write_error(reported_path, error, 0);
  }
}

}  // namespace vlmtrain::io

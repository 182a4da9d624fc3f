#include "vlmtrain/io/folder_trial.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file_lock.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

fs::path find_existing_ancestor(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

/// Empty where it could be had.
std::string try_lock(const fs::path& file) {
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return std::strerror(errno);
  const int error = lock_file(descriptor);
  close(descriptor);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

FolderProbe probe_folder(const fs::path& folder) {
  constexpr size_t kProbeBytes = size_t{1} << 20;
  const auto start = std::chrono::steady_clock::now();
  FolderProbe probe;
  std::error_code error;
  fs::path absolute_path = fs::absolute(folder, error).lexically_normal();
  if (!absolute_path.has_filename()) absolute_path = absolute_path.parent_path();
  probe.folder = find_existing_ancestor(std::move(absolute_path));
  const fs::space_info space = fs::space(probe.folder, error);
  probe.free_bytes = error ? -1 : static_cast<int64_t>(space.available);
  if (!fs::is_directory(probe.folder, error)) {
    probe.failure = fmt::format("{} is no folder", probe.folder.string());
    return probe;
  }
  const fs::path file = probe.folder / fmt::format(".vlmtrain-trial-{}", getpid());
  try {
    write_file(file, std::string(kProbeBytes, 'x'));
    probe.lock_failure = try_lock(file);
  } catch (const UserError& failure) {
    probe.failure = failure.what();
  }
  fs::remove(file, error);
  probe.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return probe;
}

}  // namespace vlmtrain::io

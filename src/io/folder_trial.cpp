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

fs::path nearest_that_exists(fs::path folder) {
  std::error_code unknown;
  while (!fs::exists(folder, unknown) && folder.has_parent_path() && folder != folder.parent_path()) {
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

FolderTrial try_folder(const fs::path& folder) {
  constexpr size_t kBytes = size_t{1} << 20;
  const auto start = std::chrono::steady_clock::now();
  FolderTrial trial;
  std::error_code error;
  fs::path asked = fs::absolute(folder, error).lexically_normal();
  if (!asked.has_filename()) asked = asked.parent_path();
  trial.folder = nearest_that_exists(std::move(asked));
  const fs::space_info space = fs::space(trial.folder, error);
  trial.free_bytes = error ? -1 : static_cast<int64_t>(space.available);
  if (!fs::is_directory(trial.folder, error)) {
    trial.failure = fmt::format("{} is no folder", trial.folder.string());
    return trial;
  }
  const fs::path file = trial.folder / fmt::format(".vlmtrain-trial-{}", getpid());
  try {
    write_file(file, std::string(kBytes, 'x'));
    trial.lock_failure = try_lock(file);
  } catch (const UserError& failure) {
    trial.failure = failure.what();
  }
  fs::remove(file, error);
  trial.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return trial;
}

}  // namespace vlmtrain::io

#include "train/run/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/chrono.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::train {

namespace {

/// Maximum length of the line in run.lock: longer than describe_this_process() with the longest
/// host name.
constexpr size_t kMaxLockHolderBytes = 512;

std::string describe_this_process() {
  return fmt::format("process {} on {}, since {:%Y-%m-%d %H:%M:%S} UTC", getpid(), get_host_name(),
                     fmt::gmtime(std::time(nullptr)));
}

/// Returns the line that the holder of the lock wrote.
std::string read_lock_holder(int descriptor) {
  std::string text(kMaxLockHolderBytes, '\0');
  const ssize_t bytes = pread(descriptor, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  text.resize(std::min(text.size(), text.find('\n')));
  return text.empty() ? "an unknown process" : text;
}

/// Writes this process into run.lock. Throws UserError (kFailed).
void write_lock_holder(int descriptor, const std::filesystem::path& path) {
  const std::string line = describe_this_process() + "\n";
  const bool is_written = ftruncate(descriptor, 0) == 0 &&
                          pwrite(descriptor, line.data(), line.size(), 0) == static_cast<ssize_t>(line.size());
  if (!is_written) {
    throw run_error("cannot write {}: {}; free space there, or choose another {}", path.string(), std::strerror(errno),
                    keys::output::kDir);
  }
}

}  // namespace

bool is_dry_run() {
  return planner::is_on_virtual_gpu();
}

std::filesystem::path get_run_folder(const Config& config) {
  const std::filesystem::path folder = config.output.dir;
  return is_dry_run() ? folder / fmt::format("virtual-{}", vgpu::find_virtual_gpu_interface()->gpu_name()) : folder;
}

void create_run_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error == std::errc::not_a_directory || error == std::errc::file_exists) {
    throw usage_error("{}: {} cannot be a folder, since it or one of its parents is a file; choose another",
                      keys::output::kDir, folder.string());
  }
  if (error) {
    throw run_error("{}: cannot create the folder {}: {}; choose another, or free space for it", keys::output::kDir,
                    folder.string(), error.message());
  }
}

RunLock::RunLock(const std::filesystem::path& run_dir) {
  const auto path = run_dir / "run.lock";
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw run_error("{}: is {}, but the run's lock is a file of that name; remove it", path.string(), kind);
  }
  // O_NONBLOCK: opening a pipe of that name would block.
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) {
    throw run_error("cannot write {}: {}; choose a writable {}", path.string(), std::strerror(errno),
                    keys::output::kDir);
  }
  const int error = io::lock_file(descriptor_);
  if (error == EAGAIN || error == EACCES) {
    const std::string lock_holder = read_lock_holder(descriptor_);
    close(descriptor_);
    throw usage_error(
        "{}: {} is in use by another run: {}; wait for it or stop it, or choose another {} (if that process has "
        "certainly ended, remove {})",
        keys::output::kDir, run_dir.string(), lock_holder, keys::output::kDir, path.string());
  }
  if (error != 0) {
    spdlog::warn("{}: the file system does not support locks ({}), so a second run could write to this folder",
                 run_dir.string(), std::strerror(error));
  }
  try {
    write_lock_holder(descriptor_, path);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

RunLock::~RunLock() {
  close(descriptor_);
}

}  // namespace vlmtrain::train

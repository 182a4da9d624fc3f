#include "vlmtrain/io/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

/// Returns `folder`, or its nearest parent that exists.
fs::path find_existing_ancestor(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

/// Opens and locks a file. Returns the reason of a failure, or "".
std::string probe_lock(const fs::path& file) {
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return std::strerror(errno);
  const int error = lock_file(descriptor);
  close(descriptor);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{} is {}; give a file", path.string(), kind);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw make_read_error(path, errno);
  }
  throw_if_lfs_pointer(path, content);
  return content;
}

int lock_file(int descriptor) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (fcntl(descriptor, F_OFD_SETLK, &lock) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

bool is_git_lfs_pointer(std::string_view first_bytes) {
  return first_bytes.starts_with("version https://git-lfs.github.com/spec/");
}

void throw_if_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes) {
  if (!is_git_lfs_pointer(first_bytes)) return;
  throw data_error(
      "{}: is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download the file",
      path.string());
}

FolderProbeResult probe_folder(const fs::path& folder) {
  // A choice, not measured: large enough that a full disk or an exceeded quota is noticed.
  constexpr size_t kProbeFileBytes = size_t{1} << 20;
  const auto start = std::chrono::steady_clock::now();
  FolderProbeResult probe;
  std::error_code error;
  fs::path absolute_path = fs::absolute(folder, error).lexically_normal();
  if (!absolute_path.has_filename()) absolute_path = absolute_path.parent_path();
  probe.folder = find_existing_ancestor(std::move(absolute_path));
  const fs::space_info disk_space = fs::space(probe.folder, error);
  probe.free_bytes = error ? -1 : static_cast<int64_t>(disk_space.available);
  if (!fs::is_directory(probe.folder, error)) {
    probe.write_error = fmt::format("{} is not a folder", probe.folder.string());
    return probe;
  }
  const fs::path file = probe.folder / fmt::format(".vlmtrain-trial-{}", getpid());
  try {
    write_file(file, std::string(kProbeFileBytes, 'x'));
    probe.lock_error = probe_lock(file);
  } catch (const UserError& failure) {
    probe.write_error = failure.what();
  }
  fs::remove(file, error);
  probe.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return probe;
}

bool is_hub_model_id(const std::string& text) {
  const auto slash_position = text.find('/');
  if (std::error_code error; std::filesystem::exists(text.substr(0, slash_position), error)) return false;
  const auto is_name_character = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  // The characters and the form that the Hub allows for repository names.
  return slash_position != std::string::npos && slash_position > 0 && slash_position + 1 < text.size() &&
         text.front() != '.' && std::count(text.begin(), text.end(), '/') == 1 &&
         std::all_of(text.begin(), text.end(), [&](char c) { return c == '/' || is_name_character(c); });
}

fs::path get_user_cache_folder() {
  const auto get_env_folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    const fs::path folder(value == nullptr ? "" : value);
    return folder.is_absolute() ? folder : fs::path();
  };
  if (auto override_folder = get_env_folder("VLMTRAIN_CACHE"); !override_folder.empty()) return override_folder;
  if (const auto cache = get_env_folder("XDG_CACHE_HOME"); !cache.empty()) return cache / "vlmtrain";
  if (const auto home = get_env_folder("HOME"); !home.empty()) return home / ".cache/vlmtrain";
  return {};
}

}  // namespace vlmtrain::io

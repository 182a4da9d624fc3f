#include "vlmtrain/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
#include <limits>
#include <utility>

#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/hash.h"
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

uint64_t to_nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

uint64_t compute_version_hash(const std::filesystem::path& path, const struct stat& status) {
  return ContentHash()
      .add(path.native())
      .add(static_cast<uint64_t>(status.st_size))
      .add(to_nanoseconds(status.st_mtim))
      .add(to_nanoseconds(status.st_ctim))
      .add(status.st_ino)
      .value();
}

/// Returns the error for a changed file. It is a run_error: a data_error would drop this and all
/// following samples as bad.
UserError make_file_changed_error(const std::filesystem::path& path) {
  return run_error("{}: changed during the run; start again, and do not change data during a run", path.string());
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{}: is {}; give a file", path.string(), kind);
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

bool is_git_lfs_pointer(std::string_view first_bytes) {
  return first_bytes.starts_with("version https://git-lfs.github.com/spec/");
}

void throw_if_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes) {
  if (!is_git_lfs_pointer(first_bytes)) return;
  throw data_error(
      "{}: is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download the file",
      path.string());
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(path, 0, std::numeric_limits<size_t>::max()) {}

MappedFile::MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{}: is {}; give a file", path.string(), kind);
  }
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw make_read_error(path, errno);
  }
  struct stat status {};
  void* mapping = nullptr;
  int error = fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) {
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  file_bytes_ = static_cast<size_t>(status.st_size);
  // mmap() needs an offset that is a multiple of the page size.
  padding_bytes_ = offset % static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (error == 0) size_ = offset < file_bytes_ ? std::min(bytes, file_bytes_ - offset) : 0;
  if (size_ > 0) {
    // Without MAP_NORESERVE, the kernel refuses a private writable mapping larger than the memory.
    mapping = mmap(nullptr, padding_bytes_ + size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor,
                   static_cast<off_t>(offset - padding_bytes_));
    error = mapping == MAP_FAILED ? errno : 0;
  }
  close(descriptor);
  if (error != 0) {
    throw make_read_error(path, error);
  }
  mapping_ = static_cast<std::byte*>(mapping);
  if (mapping_ == nullptr) padding_bytes_ = 0;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) {
    munmap(mapping_, padding_bytes_ + size_);
  }
}

void MappedFile::release_pages(size_t offset, size_t bytes) const {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Pages that are only partly in the range stay.
  const size_t page_begin = (padding_bytes_ + offset + page_bytes - 1) / page_bytes * page_bytes;
  const size_t page_end = (padding_bytes_ + offset + bytes) / page_bytes * page_bytes;
  if (page_begin < page_end) madvise(mapping_ + page_begin, page_end - page_begin, MADV_DONTNEED);
}

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
  if (const auto kind = describe_non_regular_file(path_); !kind.empty()) {
    throw data_error("{}: is {}; give a file", path_.string(), kind);
  }
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw make_read_error(path_, errno);
  struct stat status {};
  const int error = fstat(descriptor, &status) == 0 ? 0 : errno;
  close(descriptor);
  if (error != 0) throw make_read_error(path_, error);
  size_ = static_cast<uint64_t>(status.st_size);
  version_hash_ = compute_version_hash(path_, status);
}

std::string DataFile::read(uint64_t offset, uint64_t bytes) const {
  return OpenHandle(*this).read(offset, bytes);
}

DataFile::OpenHandle::OpenHandle(const DataFile& file)
    : file_(file), descriptor_(open(file.path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  // During a run, an unreadable file is a run_error, as in make_file_changed_error().
  if (descriptor_ < 0) throw run_error("{}", make_read_error(file_.path_, errno).what());
}

DataFile::OpenHandle::~OpenHandle() {
  close(descriptor_);
}

void DataFile::OpenHandle::check_unchanged() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || compute_version_hash(file_.path_, status) != file_.version_hash_)
    throw make_file_changed_error(file_.path_);
}

std::string DataFile::OpenHandle::read(uint64_t offset, uint64_t bytes) const {
  VLMTRAIN_CHECK(offset + bytes <= file_.size_, "{} bytes at offset {} exceed the file {}", bytes, offset,
                 file_.path_.string());
  check_unchanged();
  std::string content(bytes, '\0');
  uint64_t num_bytes_read = 0;
  while (num_bytes_read < bytes) {
    const ssize_t count = pread(descriptor_, content.data() + num_bytes_read, bytes - num_bytes_read,
                                static_cast<off_t>(offset + num_bytes_read));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw run_error("{}", make_read_error(file_.path_, errno).what());
    if (count == 0) throw make_file_changed_error(file_.path_);
    num_bytes_read += static_cast<uint64_t>(count);
  }
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

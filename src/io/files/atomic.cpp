#include "vlmtrain/io/atomic.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

/// Returns `path`. Throws run_error if it is a device or a pipe: renaming a file over a device
/// would replace the device for all processes.
std::filesystem::path check_replaceable(std::filesystem::path path) {
  const std::string folder = get_parent_folder(path).lexically_normal().string();
  const bool is_system_path = folder == "/dev" || folder.starts_with("/dev/fd") || folder.starts_with("/proc/");
  const std::string_view kind = is_system_path ? "a device" : describe_non_regular_file(path);
  if (!kind.empty()) {
    throw run_error("{}: cannot be written, because it is {}; choose another name", path.string(), kind);
  }
  return path;
}

// Returns the path of a folder with a file name: "runs/step-1/" becomes "runs/step-1".
fs::path remove_trailing_slash(fs::path path) {
  path = path.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// Flushes all files and folders in `root` to the disk. Errors name `reported_path`.
void sync_folder_to_disk(const fs::path& root, const fs::path& reported_path) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_symlink() && (entry.is_regular_file() || entry.is_directory())) {
      sync_to_disk(entry.path(), reported_path);
    }
  }
  sync_to_disk(root, reported_path);
}

// Removes a folder and ignores errors: clean_up_abandoned_temp_files() removes the rest later.
void try_remove_folder(const fs::path& path) {
  std::error_code ignored_error;
  fs::remove_all(path, ignored_error);
}

// Age from which temporaries of other machines, whose writers are not visible, count as abandoned.
// It is a choice: a running writer changes its files more often than once a day.
constexpr std::time_t kMaxRemoteTempAgeSeconds = 86'400;

bool is_abandoned(const TempPath& temp) {
  if (temp.machine_id == get_machine_id()) {
    return !is_writer_alive(temp);
  }
  struct stat status {};
  return lstat(temp.path.c_str(), &status) == 0 && std::time(nullptr) - status.st_ctime > kMaxRemoteTempAgeSeconds;
}

// Gives a backup its final name again, unless its writer is running or the name is in use. Returns
// true on success. rename() never replaces a folder with content, so a race with another process
// that cleans up or commits loses no data.
bool try_restore_backup(const TempPath& temp) {
  if (temp.machine_id == get_machine_id() && is_writer_alive(temp)) {
    return false;
  }
  std::error_code error;
  if (fs::exists(fs::symlink_status(temp.destination_path, error))) {
    return false;
  }
  fs::rename(temp.path, temp.destination_path, error);
  return !error;
}

std::vector<TempPath> list_temp_paths(const fs::path& folder) {
  std::vector<TempPath> temp_paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (std::optional<TempPath> temp = parse_temp_path(entry->path())) {
      temp_paths.push_back(*std::move(temp));
    }
  }
  return temp_paths;
}

/// Removes a temporary path. It is renamed first, so that a thread that still writes cannot commit
/// a partial folder.
void remove_temp_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path renamed_path = make_temp_path(path.parent_path() / "unfinished", TempPathKind::kNew);
  std::filesystem::rename(path, renamed_path, error);
  if (!error) std::filesystem::remove_all(renamed_path, error);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, int64_t expected_bytes)
    : path_(check_replaceable(std::move(path))),
      temp_path_(make_temp_path(path_, TempPathKind::kNew)),
      expected_bytes_(expected_bytes) {
  int error = 0;
  register_temp_path(temp_path_, [&] {
    descriptor_ = open(temp_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    error = errno;
  });
  if (descriptor_ < 0) {
    throw_write_error(error);
  }
  reserve_disk_space();
}

AtomicFile::~AtomicFile() {
  if (auto* const recorder = ChecksumRecorder::get_current()) recorder->discard(*this);
  unregister_temp_path(temp_path_);
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
  if (!temp_path_.empty()) {
    std::error_code ignored_error;
    std::filesystem::remove(temp_path_, ignored_error);
  }
}

void AtomicFile::reserve_disk_space() {
  if (expected_bytes_ <= 0) {
    return;
  }
  // Unlike posix_fallocate(), fallocate() does not write every block on file systems that cannot
  // reserve space; they return another error, which is ignored.
  if (fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, expected_bytes_) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    throw_write_error(errno);
  }
}

void AtomicFile::write(std::string_view bytes) {
  const int64_t end = written_bytes_ + static_cast<int64_t>(bytes.size());
  expected_bytes_ = std::max(expected_bytes_, end);
  if (auto* const recorder = ChecksumRecorder::get_current()) recorder->add(*this, bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw_write_error(count < 0 ? errno : EIO);
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  written_bytes_ = end;
}

void AtomicFile::commit() {
  sync_and_close();
  if (rename(temp_path_.c_str(), path_.c_str()) != 0) {
    throw_write_error(errno);
  }
  unregister_temp_path(std::exchange(temp_path_, {}));
  if (auto* const recorder = ChecksumRecorder::get_current()) recorder->commit(*this, path_);
  sync_to_disk(get_parent_folder(path_), path_);
}

void AtomicFile::sync_and_close() {
  if (fsync(descriptor_) != 0) {
    throw_write_error(errno);
  }
  // NFS may report a full disk only on close().
  if (close(std::exchange(descriptor_, -1)) != 0) {
    throw_write_error(errno);
  }
}

// Throws the error for `error`, an errno. Removes the temporary file here, because the destructor
// does not run if the constructor throws.
void AtomicFile::throw_write_error(int error) {
  const UserError failure = make_write_error(path_, error, expected_bytes_);
  if (descriptor_ >= 0) {
    close(std::exchange(descriptor_, -1));
  }
  std::error_code ignored_error;
  std::filesystem::remove(temp_path_, ignored_error);
  unregister_temp_path(std::exchange(temp_path_, {}));
  throw failure;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path, static_cast<int64_t>(content.size()));
  file.write(content);
  file.commit();
}

AtomicDirectory::AtomicDirectory(fs::path destination_path)
    : destination_path_(remove_trailing_slash(std::move(destination_path))),
      temp_path_(make_temp_path(destination_path_, TempPathKind::kNew)) {
  std::error_code error;
  if (fs::exists(destination_path_, error) && !fs::is_directory(destination_path_, error)) {
    throw run_error("{}: cannot be written, because a file has that name; remove it or choose another",
                    destination_path_.string());
  }
  register_temp_path(temp_path_, [&] { fs::create_directories(temp_path_, error); });
  if (error) {
    unregister_temp_path(temp_path_);
    throw make_write_error(destination_path_, error.value(), 0);
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (!temp_path_.empty()) {
    try_remove_folder(temp_path_);
    unregister_temp_path(temp_path_);
  }
}

void AtomicDirectory::commit() {
  VLMTRAIN_CHECK(!temp_path_.empty(), "{} is already committed", destination_path_.string());
  sync_folder_to_disk(temp_path_, destination_path_);
  std::error_code error;
  fs::path previous_folder;
  if (!fs::exists(fs::symlink_status(destination_path_, error))) {
    if (rename(temp_path_.c_str(), destination_path_.c_str()) != 0) {
      throw make_write_error(destination_path_, errno, 0);
    }
  } else if (try_exchange_paths(temp_path_, destination_path_)) {
    previous_folder = temp_path_;
  } else {
    previous_folder = replace_folder_in_two_steps(temp_path_, destination_path_);
  }
  unregister_temp_path(std::exchange(temp_path_, {}));
  sync_to_disk(get_parent_folder(destination_path_), destination_path_);
  if (!previous_folder.empty()) {
    try_remove_folder(previous_folder);
  }
}

void write_symlink(const std::filesystem::path& path, const std::filesystem::path& target) {
  const auto temp_path = make_temp_path(path, TempPathKind::kNew);
  int error = 0;
  register_temp_path(temp_path, [&] { error = symlink(target.c_str(), temp_path.c_str()) == 0 ? 0 : errno; });
  if (error == 0 && rename(temp_path.c_str(), path.c_str()) != 0) error = errno;
  unregister_temp_path(temp_path);
  if (error == 0) return sync_to_disk(get_parent_folder(path), path);
  std::error_code ignored_error;
  std::filesystem::remove(temp_path, ignored_error);
  throw make_write_error(path, error, 0);
}

std::optional<RemovalFailure> remove_directory(const std::filesystem::path& path) {
  const auto parsed_path = parse_temp_path(path);
  const bool was_renamed = parsed_path && parsed_path->kind == TempPathKind::kRemoving;
  std::filesystem::path renamed_path = was_renamed ? path : make_temp_path(path, TempPathKind::kRemoving);
  std::error_code error;
  if (!was_renamed) std::filesystem::rename(path, renamed_path, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (error) return RemovalFailure{path, error.message()};
  std::filesystem::remove_all(renamed_path, error);
  if (error) return RemovalFailure{std::move(renamed_path), error.message()};
  return std::nullopt;
}

void clean_up_abandoned_temp_files(const fs::path& folder) {
  for (const TempPath& temp : list_temp_paths(folder)) {
    if (temp.kind == TempPathKind::kBackup && try_restore_backup(temp)) {
      continue;
    }
    if (is_abandoned(temp)) {
      std::error_code ignored_error;
      fs::remove_all(temp.path, ignored_error);
    }
  }
}

TempFileCleanup::TempFileCleanup(std::filesystem::path path) : path_(std::move(path)) {
  register_temp_path(path_, [] {});
}

TempFileCleanup::~TempFileCleanup() {
  unregister_temp_path(path_);
}

std::unique_lock<std::mutex> lock_and_remove_temp_files() {
  auto& [mutex, paths] = get_temp_path_registry();
  std::unique_lock lock(mutex);
  for (const auto& path : paths) remove_temp_path(path);
  return lock;
}

namespace {

/// The recorder that records the commits of this thread, or nullptr.
thread_local ChecksumRecorder* innermost_recorder = nullptr;

/// An open file descriptor for reading, or -1 with errno if the file cannot be opened.
class ReadOnlyDescriptor {
 public:
  explicit ReadOnlyDescriptor(const std::filesystem::path& file)
      : descriptor_(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)) {}
  ~ReadOnlyDescriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  ReadOnlyDescriptor(const ReadOnlyDescriptor&) = delete;
  ReadOnlyDescriptor& operator=(const ReadOnlyDescriptor&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

ChecksumRecorder::ChecksumRecorder() : outer_recorder_(std::exchange(innermost_recorder, this)) {}

ChecksumRecorder::~ChecksumRecorder() {
  innermost_recorder = outer_recorder_;
}

ChecksumRecorder* ChecksumRecorder::get_current() {
  return innermost_recorder;
}

void ChecksumRecorder::add(const AtomicFile& file, std::string_view bytes) {
  auto& [hash, size] = partial_checksums_[&file];
  hash.add(bytes);
  size += static_cast<int64_t>(bytes.size());
}

void ChecksumRecorder::commit(const AtomicFile& file, const std::filesystem::path& path) {
  const auto& [hash, size] = partial_checksums_[&file];  // an empty file has no entry yet
  checksums_[path] = {.bytes = size, .xxh64 = hash.value()};
  partial_checksums_.erase(&file);
}

Checksum compute_checksum(const std::filesystem::path& file) {
  constexpr size_t kChunkBytes = size_t{1} << 20;  // a choice: the cost of system calls is negligible at this size
  const ReadOnlyDescriptor input(file);
  if (input.descriptor() < 0) throw make_read_error(file, errno);
  posix_fadvise(input.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::string chunk(kChunkBytes, '\0');
  Xxh64 hash;
  int64_t bytes = 0;
  for (;;) {
    const ssize_t count = read(input.descriptor(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw make_read_error(file, errno);
    if (count == 0) return {.bytes = bytes, .xxh64 = hash.value()};
    hash.add(std::string_view(chunk).substr(0, static_cast<size_t>(count)));
    bytes += count;
  }
}

}  // namespace vlmtrain::io

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/temporary_name.h"
#include "io/unfinished_paths.h"
#include "io/write_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checksums.h"

namespace vlmtrain::io {

namespace {

/// To rename a file over a device or a pipe would put it in the device's place, for everybody.
std::filesystem::path check_replaceable(std::filesystem::path path) {
  const std::string folder = get_parent_folder(path).lexically_normal().string();
  const bool is_system_path = folder == "/dev" || folder.starts_with("/dev/fd") || folder.starts_with("/proc/");
  const std::string_view kind = is_system_path ? "a device" : describe_non_regular_file(path);
  if (!kind.empty()) {
    throw run_error("cannot write {}: it is {}, and a file is written here; choose another name", path.string(), kind);
  }
  return path;
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
    fail(error);
  }
  reserve();
}

AtomicFile::~AtomicFile() {
  if (auto* const recorder = ChecksumRecorder::current()) recorder->discard(*this);
  unregister_temp_path(temp_path_);
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
  if (!temp_path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(temp_path_, ignored);
  }
}

void AtomicFile::reserve() {
  if (expected_bytes_ <= 0) {
    return;
  }
  // Not posix_fallocate: where the file system cannot reserve, that one writes every block instead.
  if (fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, expected_bytes_) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    fail(errno);
  }
}

void AtomicFile::write(std::string_view bytes) {
  const int64_t end = written_bytes_ + static_cast<int64_t>(bytes.size());
  expected_bytes_ = std::max(expected_bytes_, end);
  if (auto* const recorder = ChecksumRecorder::current()) recorder->add(*this, bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      fail(count < 0 ? errno : EIO);
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  written_bytes_ = end;
}

void AtomicFile::commit() {
  sync_and_close();
  if (rename(temp_path_.c_str(), path_.c_str()) != 0) {
    fail(errno);
  }
  unregister_temp_path(std::exchange(temp_path_, {}));
  if (auto* const recorder = ChecksumRecorder::current()) recorder->commit(*this, path_);
  sync_to_disk(get_parent_folder(path_), path_);
}

void AtomicFile::sync_and_close() {
  if (fsync(descriptor_) != 0) {
    fail(errno);
  }
  // NFS may report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) {
    fail(errno);
  }
}

// A constructor that throws runs no destructor, so the temporary goes here.
void AtomicFile::fail(int error) {
  const UserError failure = write_error(path_, error, expected_bytes_);
  if (descriptor_ >= 0) {
    close(std::exchange(descriptor_, -1));
  }
  std::error_code ignored;
  std::filesystem::remove(temp_path_, ignored);
  unregister_temp_path(std::exchange(temp_path_, {}));
  throw failure;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path, static_cast<int64_t>(content.size()));
  file.write(content);
  file.commit();
}

}  // namespace vlmtrain::io

#include "io/files/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/hash.h"

namespace vlmtrain::io {

namespace {

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
  return run_error("{} changed during the run; start again, and do not change data during a run", path.string());
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(path, 0, std::numeric_limits<size_t>::max()) {}

MappedFile::MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{} is {}; give a file", path.string(), kind);
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
    throw data_error("{} is {}; give a file", path_.string(), kind);
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

}  // namespace vlmtrain::io

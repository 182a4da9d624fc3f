#include "io/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "io/files/file_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

namespace vlmtrain::io {

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(path, 0, std::numeric_limits<size_t>::max()) {}

MappedFile::MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes) {
  if (const auto kind = describe_non_regular_file(path); !kind.empty()) {
    throw data_error("{} is {}; a file is wanted here", path.string(), kind);
  }
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw read_error(path, errno);
  }
  struct stat status {};
  void* mapping = nullptr;
  int error = fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) {
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  file_bytes_ = static_cast<size_t>(status.st_size);
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
    throw read_error(path, error);
  }
  data_ = static_cast<std::byte*>(mapping);
  if (data_ == nullptr) padding_bytes_ = 0;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(data_, padding_bytes_ + size_);
  }
}

void MappedFile::release(size_t offset, size_t bytes) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (padding_bytes_ + offset + page - 1) / page * page;
  const size_t end = (padding_bytes_ + offset + bytes) / page * page;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

}  // namespace vlmtrain::io

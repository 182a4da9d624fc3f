#include "vlmtrain/io/checksums.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

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
  const auto make_error = [&file] { return data_error("cannot read {}: {}", file.string(), std::strerror(errno)); };
  if (input.descriptor() < 0) throw make_error();
  posix_fadvise(input.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::string chunk(kChunkBytes, '\0');
  Xxh64 hash;
  int64_t bytes = 0;
  for (;;) {
    const ssize_t count = read(input.descriptor(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw make_error();
    if (count == 0) return {.bytes = bytes, .xxh64 = hash.value()};
    hash.add(std::string_view(chunk).substr(0, static_cast<size_t>(count)));
    bytes += count;
  }
}

}  // namespace vlmtrain::io

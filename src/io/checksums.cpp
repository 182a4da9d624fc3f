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

thread_local ChecksumRecorder* recorder_of_thread = nullptr;

class OpenedToRead {
 public:
  explicit OpenedToRead(const std::filesystem::path& file)
      : descriptor_(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)) {}
  ~OpenedToRead() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenedToRead(const OpenedToRead&) = delete;
  OpenedToRead& operator=(const OpenedToRead&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

ChecksumRecorder::ChecksumRecorder() : outer_(std::exchange(recorder_of_thread, this)) {}

ChecksumRecorder::~ChecksumRecorder() {
  recorder_of_thread = outer_;
}

ChecksumRecorder* ChecksumRecorder::of_this_thread() {
  return recorder_of_thread;
}

void ChecksumRecorder::add(const AtomicFile& file, std::string_view bytes) {
  auto& [hash, size] = open_[&file];
  hash.add(bytes);
  size += static_cast<int64_t>(bytes.size());
}

void ChecksumRecorder::commit(const AtomicFile& file, const std::filesystem::path& path) {
  const auto& [hash, size] = open_[&file];
  files_[path] = {.bytes = size, .xxh64 = hash.value()};
  open_.erase(&file);
}

Checksum checksum_of(const std::filesystem::path& file) {
  constexpr size_t kPiece = size_t{1} << 20;
  const OpenedToRead opened(file);
  const auto refuse = [&file] { return data_error("{}: cannot be read: {}", file.string(), std::strerror(errno)); };
  if (opened.descriptor() < 0) throw refuse();
  posix_fadvise(opened.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::string piece(kPiece, '\0');
  Xxh64 hash;
  int64_t bytes = 0;
  for (;;) {
    const ssize_t count = read(opened.descriptor(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw refuse();
    if (count == 0) return {.bytes = bytes, .xxh64 = hash.value()};
    hash.add(std::string_view(piece).substr(0, static_cast<size_t>(count)));
    bytes += count;
  }
}

}  // namespace vlmtrain::io

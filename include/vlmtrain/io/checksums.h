#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

#include "vlmtrain/base/xxh64.h"

namespace vlmtrain::io {

class AtomicFile;

/// A file's content in short.
struct Checksum {
  int64_t bytes = 0;
  uint64_t xxh64 = 0;

  bool operator==(const Checksum&) const = default;
};

/// The checksums of files that AtomicFile commits on this thread while the object lives: of the bytes as they were
/// given to the system, so nothing is read again. The innermost object of a thread has them.
class ChecksumRecorder {
 public:
  ChecksumRecorder();
  ChecksumRecorder(const ChecksumRecorder&) = delete;
  ChecksumRecorder& operator=(const ChecksumRecorder&) = delete;
  ~ChecksumRecorder();

  /// By the paths that AtomicFile was given.
  const std::map<std::filesystem::path, Checksum>& files() const { return files_; }

  /// For AtomicFile: the recorder of this thread, or null.
  static ChecksumRecorder* current();
  void add(const AtomicFile& file, std::string_view bytes);
  void discard(const AtomicFile& file) { open_files_.erase(&file); }
  void commit(const AtomicFile& file, const std::filesystem::path& path);

 private:
  ChecksumRecorder* outer_recorder_;
  std::map<const AtomicFile*, std::pair<Xxh64, int64_t>> open_files_;
  std::map<std::filesystem::path, Checksum> files_;
};

/// Of a file as it is on the disk. Throws UserError (kBadData) where it cannot be read.
Checksum compute_checksum(const std::filesystem::path& file);

}  // namespace vlmtrain::io

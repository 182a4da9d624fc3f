#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "vlmtrain/base/hash.h"

namespace vlmtrain::io {

class AtomicFile;

/// Size and XXH64 hash (seed 0) of a file's content.
struct Checksum {
  int64_t bytes = 0;  ///< size of the file
  uint64_t xxh64 = 0;

  bool operator==(const Checksum&) const = default;
};

/// Records the checksums of the files that AtomicFile commits on this thread during the lifetime of
/// the object. They are computed while the bytes are written, so no file is read again. If several
/// objects exist on a thread, the innermost one records.
class ChecksumRecorder {
 public:
  ChecksumRecorder();
  ChecksumRecorder(const ChecksumRecorder&) = delete;
  ChecksumRecorder& operator=(const ChecksumRecorder&) = delete;
  ~ChecksumRecorder();

  /// Returns the checksums of the committed files, by the paths that AtomicFile was given.
  const std::map<std::filesystem::path, Checksum>& checksums() const { return checksums_; }

  // Called by AtomicFile.

  /// Returns the innermost recorder of the calling thread, or nullptr.
  static ChecksumRecorder* get_current();
  /// Adds `bytes`, the next part of the content of `file`.
  void add(const AtomicFile& file, std::string_view bytes);
  /// Forgets a file that is not committed.
  void discard(const AtomicFile& file) { partial_checksums_.erase(&file); }
  /// Stores the checksum of a committed file under its final path, `path`.
  void commit(const AtomicFile& file, const std::filesystem::path& path);

 private:
  ChecksumRecorder* outer_recorder_;
  std::map<const AtomicFile*, std::pair<Xxh64, int64_t>> partial_checksums_;
  std::map<std::filesystem::path, Checksum> checksums_;
};

/// Reads a file and returns its checksum. Throws data_error if it cannot be read.
Checksum compute_checksum(const std::filesystem::path& file);

}  // namespace vlmtrain::io

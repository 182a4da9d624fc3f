#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace vlmtrain::vgpu {

/// The set of pinned host memory ranges. Thread-safe.
class PinnedHostMemory {
 public:
  void add(const void* first, size_t bytes);
  /// Removes the range that begins at `first`. Returns false if there is none.
  bool remove(const void* first);
  /// Returns whether a range contains the address.
  bool is_pinned(const void* pointer) const;

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> pinned_ranges_;  // by first address
};

/// Returns the ranges of this process.
PinnedHostMemory& pinned_host_memory();

}  // namespace vlmtrain::vgpu

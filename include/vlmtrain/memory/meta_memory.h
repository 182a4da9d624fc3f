#pragma once

#include <cstdint>

namespace vlmtrain::memory {

/// While it lives, tensors on LibTorch's meta device are counted as if they had memory: an operation there makes the
/// tensors that it would make elsewhere, computes nothing and takes no memory. Allocations are told to AllocationTrace
/// as the CPU's and the GPU's are. Only tensors that were made since then are counted; one at a time in a process; for
/// one thread.
class MetaMemoryTracker {
 public:
  MetaMemoryTracker();
  ~MetaMemoryTracker();
  MetaMemoryTracker(const MetaMemoryTracker&) = delete;
  MetaMemoryTracker& operator=(const MetaMemoryTracker&) = delete;

  int64_t live_bytes() const;
  /// Since reset_peak().
  int64_t peak_bytes() const;
  /// The same of tensors below kLargeBlockBytes.
  int64_t small_live_bytes() const;
  int64_t small_peak_bytes() const;
  void reset_peak();
};

}  // namespace vlmtrain::memory

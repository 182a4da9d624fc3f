#pragma once

#include <cstdint>

namespace vlmtrain::memory {

/// A scope that counts tensors on LibTorch's meta device as if they had memory. Operations on the
/// meta device create the same tensors as on another device but compute nothing. Allocations are
/// reported to AllocationTrace like those of a CPU or GPU. Only tensors created in the scope are
/// counted, in multiples of the CPU allocator's alignment (64 bytes).
///
/// REQUIRES: at most one instance exists per process. One thread uses it and the meta tensors.
class MetaMemoryTracker {
 public:
  MetaMemoryTracker();
  ~MetaMemoryTracker();
  MetaMemoryTracker(const MetaMemoryTracker&) = delete;
  MetaMemoryTracker& operator=(const MetaMemoryTracker&) = delete;

  /// Returns the bytes of live meta tensors.
  int64_t live_bytes() const;
  /// Returns the maximum of live_bytes() since construction or reset_peak().
  int64_t peak_bytes() const;
  /// Returns the live bytes of tensors smaller than kLargeBlockBytes.
  int64_t small_tensor_live_bytes() const;
  /// Returns the maximum of small_tensor_live_bytes() since construction or reset_peak().
  int64_t small_tensor_peak_bytes() const;
  /// Sets the peaks to the current values.
  void reset_peak();
};

}  // namespace vlmtrain::memory

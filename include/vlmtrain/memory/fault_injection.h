#pragma once

#include <cstdint>
#include <limits>
#include <memory>

namespace vlmtrain::memory {

/// Which allocations of tensors on the CPU fail.
struct AllocationFaults {
  int64_t failing_allocation = -1;                            ///< this one, counted from 0 at arm(); -1: none
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();  ///< and those that would hold more than this
};

struct AllocationCounter;

/// For tests: makes PyTorch's CPU allocator throw c10::OutOfMemoryError, as its CUDA allocator does. Only allocations
/// of the thread that made it count and fail, while it lives (backward passes on the CPU run in the thread that starts
/// them). Several count each for themselves.
class FaultInjection {
 public:
  FaultInjection();
  ~FaultInjection();
  FaultInjection(const FaultInjection&) = delete;
  FaultInjection& operator=(const FaultInjection&) = delete;

  /// From here on, counted anew; bytes that live already count towards the limit.
  void arm(AllocationFaults faults);
  void disarm() { arm({}); }

  /// Allocations since arm().
  int64_t allocations() const;
  /// How many of them failed.
  int64_t failures() const;
  /// What lives of the thread's allocations since this object was made, and the most of it since arm().
  int64_t live_bytes() const;
  int64_t peak_bytes() const;

 private:
  std::shared_ptr<AllocationCounter> counter_;
};

}  // namespace vlmtrain::memory

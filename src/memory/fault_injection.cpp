#include "vlmtrain/memory/fault_injection.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "memory/watched_allocator.h"

namespace vlmtrain::memory {

struct AllocationCounter final : AllocationWatcher {
  AllocationFaults faults;
  int64_t allocations = 0;
  int64_t failures = 0;
  std::atomic<int64_t> live_bytes{0};  // tensors may die in other threads
  int64_t peak_bytes = 0;

  void on_allocate(int64_t bytes) override {
    const int64_t index = allocations++;
    if (index == faults.failing_allocation || live_bytes + bytes > faults.limit_bytes) {
      ++failures;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "injected: allocation ", index, " of ", bytes, " bytes fails");
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void on_free(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

FaultInjection::FaultInjection() : counter_(std::make_shared<AllocationCounter>()) {
  watch_allocations(counter_);
}

FaultInjection::~FaultInjection() {
  unwatch_allocations(*counter_);
}

void FaultInjection::arm(AllocationFaults faults) {
  counter_->faults = faults;
  counter_->allocations = 0;
  counter_->failures = 0;
  counter_->peak_bytes = counter_->live_bytes;
}

int64_t FaultInjection::allocations() const {
  return counter_->allocations;
}

int64_t FaultInjection::failures() const {
  return counter_->failures;
}

int64_t FaultInjection::live_bytes() const {
  return counter_->live_bytes;
}

int64_t FaultInjection::peak_bytes() const {
  return counter_->peak_bytes;
}

}  // namespace vlmtrain::memory

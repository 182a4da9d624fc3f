#include "vlmtrain/memory/fault_injection.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "memory/watched_allocator.h"

namespace vlmtrain::memory {

struct AllocationCount final : AllocationWatcher {
  AllocationFaults faults;
  int64_t allocations = 0;
  int64_t failures = 0;
  std::atomic<int64_t> live_bytes{0};  // tensors may die in other threads
  int64_t peak_bytes = 0;

  void take(int64_t bytes) override {
    const int64_t number = allocations++;
    if (number == faults.failing_allocation || live_bytes + bytes > faults.limit_bytes) {
      ++failures;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "injected: allocation ", number, " of ", bytes, " bytes fails");
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void give_back(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

FaultInjection::FaultInjection() : state_(std::make_shared<AllocationCount>()) {
  watch_allocations(state_);
}

FaultInjection::~FaultInjection() {
  unwatch_allocations(*state_);
}

void FaultInjection::arm(AllocationFaults faults) {
  state_->faults = faults;
  state_->allocations = 0;
  state_->failures = 0;
  state_->peak_bytes = state_->live_bytes;
}

int64_t FaultInjection::allocations() const {
  return state_->allocations;
}

int64_t FaultInjection::failures() const {
  return state_->failures;
}

int64_t FaultInjection::live_bytes() const {
  return state_->live_bytes;
}

int64_t FaultInjection::peak_bytes() const {
  return state_->peak_bytes;
}

}  // namespace vlmtrain::memory

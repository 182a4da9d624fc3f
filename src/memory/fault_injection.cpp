#include "vlmtrain/memory/fault_injection.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

struct AllocationCount {
  std::thread::id thread = std::this_thread::get_id();
  AllocationFaults faults;
  int64_t allocations = 0;
  int64_t failures = 0;
  std::atomic<int64_t> live_bytes{0};  // tensors may die in other threads
  int64_t peak_bytes = 0;

  /// Counts an allocation; throws if it is to fail.
  void take(int64_t bytes) {
    const int64_t number = allocations++;
    if (number == faults.failing_allocation || live_bytes + bytes > faults.limit_bytes) {
      ++failures;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "injected: allocation ", number, " of ", bytes, " bytes fails");
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }
};

namespace {

/// What stands behind a tensor's memory instead of the allocator's own.
struct CountedMemory {
  c10::DataPtr memory;
  int64_t bytes;
  std::shared_ptr<AllocationCount> state;

  static void free(void* self) {
    const std::unique_ptr<CountedMemory> owner(static_cast<CountedMemory*>(self));
    owner->state->live_bytes -= owner->bytes;
  }
};

/// In front of PyTorch's allocator. It stays once it was put there: memory that it gave out may outlive any test.
class FaultyAllocator final : public c10::Allocator {
 public:
  explicit FaultyAllocator(c10::Allocator* real) : real_(real) {}

  void watch(const std::shared_ptr<AllocationCount>& state) { std::atomic_store(&state_, state); }

  c10::DataPtr allocate(size_t bytes) override {
    const std::shared_ptr<AllocationCount> state = std::atomic_load(&state_);
    if (!state || state->thread != std::this_thread::get_id()) return real_->allocate(bytes);
    state->take(static_cast<int64_t>(bytes));
    c10::DataPtr memory = real_->allocate(bytes);
    void* const address = memory.get();
    const auto device = memory.device();
    auto counted =
        std::make_unique<CountedMemory>(CountedMemory{std::move(memory), static_cast<int64_t>(bytes), state});
    return {address, counted.release(), &CountedMemory::free, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    real_->copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator* real_;
  std::shared_ptr<AllocationCount> state_;
};

FaultyAllocator& allocator_in_front() {
  static FaultyAllocator* const allocator = [] {
    auto* const made = new FaultyAllocator(c10::GetAllocator(c10::DeviceType::CPU));  // never freed, see above
    constexpr uint8_t kInFront = 255;
    c10::SetAllocator(c10::DeviceType::CPU, made, kInFront);
    return made;
  }();
  return *allocator;
}

}  // namespace

FaultInjection::FaultInjection() : state_(std::make_shared<AllocationCount>()) {
  allocator_in_front().watch(state_);
}

FaultInjection::~FaultInjection() {
  allocator_in_front().watch(nullptr);
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

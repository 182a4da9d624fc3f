#include "vlmtrain/memory/fault_injection.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

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

/// Memory that was counted when it was given out.
struct Counted {
  int64_t bytes;
  std::shared_ptr<AllocationCount> count;
};

/// In front of PyTorch's allocator. It stays once it was put there: memory that it gave out may outlive any test.
/// Pointers are the real allocator's own, since some callers (oneDNN) hold nothing else.
class FaultyAllocator final : public c10::Allocator {
 public:
  explicit FaultyAllocator(c10::Allocator* real) : real_(real) {}

  void watch(std::shared_ptr<AllocationCount> count) {
    const std::lock_guard lock(mutex_);
    watching_ = std::move(count);
  }

  c10::DataPtr allocate(size_t bytes) override {
    std::shared_ptr<AllocationCount> count;
    {
      const std::lock_guard lock(mutex_);
      count = watching_;
    }
    if (!count || count->thread != std::this_thread::get_id()) return real_->allocate(bytes);
    count->take(static_cast<int64_t>(bytes));
    c10::DataPtr memory = real_->allocate(bytes);
    if (memory.get() == nullptr) return memory;
    const std::lock_guard lock(mutex_);
    counted_[memory.get()] = {static_cast<int64_t>(bytes), count};
    const bool replaced = memory.compare_exchange_deleter(real_->raw_deleter(), raw_deleter());
    VLMTRAIN_CHECK(replaced, "memory of the CPU allocator with another's deleter");
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &FaultyAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    real_->copy_data(destination, source, bytes);
  }

 private:
  static void free(void* address);

  void forget(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = counted_.find(address);
    if (found == counted_.end()) return;  // another thread's
    found->second.count->live_bytes -= found->second.bytes;
    counted_.erase(found);
  }

  c10::Allocator* real_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<AllocationCount> watching_;
  std::unordered_map<void*, Counted> counted_;
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

void FaultyAllocator::free(void* address) {
  FaultyAllocator& self = allocator_in_front();
  self.forget(address);
  self.real_->raw_deleter()(address);
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

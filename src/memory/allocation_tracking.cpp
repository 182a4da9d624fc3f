#include "vlmtrain/memory/allocation_tracking.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/large_blocks.h"

namespace vlmtrain::memory {

namespace {

/// Number of live ScopedDisableTracking scopes on this thread.
thread_local int disable_depth = 0;

using WatcherList = std::vector<std::shared_ptr<AllocationWatcher>>;

/// A live allocation and the watchers that were notified of it.
struct WatchedAllocation {
  int64_t bytes;
  WatcherList watchers;
};

/// An allocator that notifies watchers and forwards to PyTorch's allocator. Never uninstalled,
/// because its memory may outlive any watcher. It returns the wrapped allocator's pointers
/// unchanged, because some callers (oneDNN) keep only the pointer.
class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator* wrapped) : wrapped_allocator_(wrapped) {}

  void add_watcher(std::shared_ptr<AllocationWatcher> watcher) {
    const std::lock_guard lock(mutex_);
    watchers_by_thread_[std::this_thread::get_id()].push_back(std::move(watcher));
  }

  void remove_watcher(const AllocationWatcher& watcher) {
    const std::lock_guard lock(mutex_);
    for (auto& [thread, watchers] : watchers_by_thread_) {
      std::erase_if(watchers, [&](const auto& entry) { return entry.get() == &watcher; });
    }
    std::erase_if(watchers_by_thread_, [](const auto& entry) { return entry.second.empty(); });
  }

  c10::DataPtr allocate(size_t bytes) override {
    WatcherList watchers = disable_depth > 0 ? WatcherList() : find_active_watchers();
    if (watchers.empty()) return wrapped_allocator_->allocate(bytes);
    const auto num_bytes = static_cast<int64_t>(bytes);
    notify_allocation(watchers, num_bytes);
    c10::DataPtr memory = allocate_or_roll_back(watchers, bytes);
    if (memory.get() == nullptr) {
      for (const auto& watcher : watchers) watcher->on_free(num_bytes);
      return memory;
    }
    const std::lock_guard lock(mutex_);
    live_allocations_[memory.get()] = {num_bytes, std::move(watchers)};
    const bool is_deleter_replaced = memory.compare_exchange_deleter(wrapped_allocator_->raw_deleter(), raw_deleter());
    VLMTRAIN_CHECK(is_deleter_replaced, "the CPU allocator's memory has an unexpected deleter");
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &WatchedAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    wrapped_allocator_->copy_data(destination, source, bytes);
  }

 private:
  static void free(void* address);

  WatcherList find_active_watchers() {
    const std::lock_guard lock(mutex_);
    const auto it = watchers_by_thread_.find(std::this_thread::get_id());
    WatcherList active_watchers;
    if (it == watchers_by_thread_.end()) return active_watchers;
    std::ranges::copy_if(it->second, std::back_inserter(active_watchers),
                         [](const auto& watcher) { return watcher->should_notify(); });
    return active_watchers;
  }

  static void notify_allocation(const WatcherList& watchers, int64_t bytes) {
    for (auto watcher = watchers.begin(); watcher != watchers.end(); ++watcher) {
      try {
        (*watcher)->on_allocate(bytes);
      } catch (...) {
        std::for_each(watchers.begin(), watcher, [bytes](const auto& earlier) { earlier->on_free(bytes); });
        throw;
      }
    }
  }

  c10::DataPtr allocate_or_roll_back(const WatcherList& watchers, size_t bytes) {
    try {
      return wrapped_allocator_->allocate(bytes);
    } catch (...) {
      for (const auto& watcher : watchers) watcher->on_free(static_cast<int64_t>(bytes));
      throw;
    }
  }

  void notify_deallocation(void* address) {
    WatchedAllocation memory;
    {
      const std::lock_guard lock(mutex_);
      const auto it = live_allocations_.find(address);
      if (it == live_allocations_.end()) return;  // allocated without a watcher
      memory = std::move(it->second);
      live_allocations_.erase(it);
    }
    for (const auto& watcher : memory.watchers) watcher->on_free(memory.bytes);
  }

  c10::Allocator* wrapped_allocator_;
  std::mutex mutex_;  // guards the members below
  std::unordered_map<std::thread::id, WatcherList> watchers_by_thread_;
  std::unordered_map<void*, WatchedAllocation> live_allocations_;
};

WatchedAllocator& get_watched_allocator_instance() {
  static WatchedAllocator* const allocator = [] {
    auto* const instance = new WatchedAllocator(get_large_block_allocator());  // never freed: see the class comment
    constexpr uint8_t kHighestPriority = 255;
    c10::SetAllocator(c10::DeviceType::CPU, instance, kHighestPriority);
    return instance;
  }();
  return *allocator;
}

void WatchedAllocator::free(void* address) {
  WatchedAllocator& allocator = get_watched_allocator_instance();
  allocator.notify_deallocation(address);
  allocator.wrapped_allocator_->raw_deleter()(address);
}

}  // namespace

ScopedDisableTracking::ScopedDisableTracking() {
  ++disable_depth;
}

ScopedDisableTracking::~ScopedDisableTracking() {
  --disable_depth;
}

void install_watched_allocator() {
  get_watched_allocator_instance();
}

void watch_allocations(std::shared_ptr<AllocationWatcher> watcher) {
  get_watched_allocator_instance().add_watcher(std::move(watcher));
}

void unwatch_allocations(const AllocationWatcher& watcher) {
  get_watched_allocator_instance().remove_watcher(watcher);
}

struct BudgetCounter final : AllocationWatcher {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t limit_bytes = kUnlimited;
  int64_t peak_bytes = 0;
  int64_t num_rejected_allocations = 0;
  bool is_paused = false;
  std::atomic<int64_t> live_bytes{0};  // tensors may be freed on other threads

  bool should_notify() const override { return !is_paused; }

  void on_allocate(int64_t bytes) override {
    if (bytes > limit_bytes - live_bytes) {
      ++num_rejected_allocations;
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       fmt::format("allocating {:.3f} GB in addition to the {:.3f} GB in use would exceed the run's "
                                   "limit of {:.3f} GB of host memory for tensors",
                                   to_gigabytes(bytes), to_gigabytes(live_bytes), to_gigabytes(limit_bytes)));
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void on_free(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

HostMemoryBudget::HostMemoryBudget() : counter_(std::make_shared<BudgetCounter>()) {
  watch_allocations(counter_);
}

HostMemoryBudget::~HostMemoryBudget() {
  unwatch_allocations(*counter_);
}

HostMemoryBudget::ScopedLimit::ScopedLimit(HostMemoryBudget& budget, int64_t bytes) : counter_(budget.counter_) {
  VLMTRAIN_CHECK(counter_->limit_bytes == BudgetCounter::kUnlimited, "host memory has a limit already");
  counter_->limit_bytes = bytes;
}

HostMemoryBudget::ScopedLimit::~ScopedLimit() {
  counter_->limit_bytes = BudgetCounter::kUnlimited;
}

HostMemoryBudget::ScopedPause::ScopedPause(HostMemoryBudget& budget) : counter_(budget.counter_) {
  VLMTRAIN_CHECK(!counter_->is_paused, "the budget is paused already");
  counter_->is_paused = true;
}

HostMemoryBudget::ScopedPause::~ScopedPause() {
  counter_->is_paused = false;
}

int64_t HostMemoryBudget::live_bytes() const {
  return counter_->live_bytes;
}

int64_t HostMemoryBudget::peak_bytes() const {
  return counter_->peak_bytes;
}

void HostMemoryBudget::reset_peak() {
  counter_->peak_bytes = counter_->live_bytes;
}

int64_t HostMemoryBudget::num_rejected_allocations() const {
  return counter_->num_rejected_allocations;
}

struct AllocationCounter final : AllocationWatcher {
  AllocationFaults faults;
  int64_t num_allocations = 0;
  int64_t num_failed_allocations = 0;
  std::atomic<int64_t> live_bytes{0};  // tensors may be freed on other threads
  int64_t peak_bytes = 0;

  void on_allocate(int64_t bytes) override {
    const int64_t index = num_allocations++;
    if (index == faults.failing_allocation_index || live_bytes + bytes > faults.limit_bytes) {
      ++num_failed_allocations;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "injected: allocation ", index, " of ", bytes, " bytes fails");
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void on_free(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

AllocationFaultInjector::AllocationFaultInjector() : counter_(std::make_shared<AllocationCounter>()) {
  watch_allocations(counter_);
}

AllocationFaultInjector::~AllocationFaultInjector() {
  unwatch_allocations(*counter_);
}

void AllocationFaultInjector::arm(AllocationFaults faults) {
  counter_->faults = faults;
  counter_->num_allocations = 0;
  counter_->num_failed_allocations = 0;
  counter_->peak_bytes = counter_->live_bytes;
}

int64_t AllocationFaultInjector::num_allocations() const {
  return counter_->num_allocations;
}

int64_t AllocationFaultInjector::num_failed_allocations() const {
  return counter_->num_failed_allocations;
}

int64_t AllocationFaultInjector::live_bytes() const {
  return counter_->live_bytes;
}

int64_t AllocationFaultInjector::peak_bytes() const {
  return counter_->peak_bytes;
}

}  // namespace vlmtrain::memory

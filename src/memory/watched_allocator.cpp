#include "memory/watched_allocator.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/large_block_allocator.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/unwatched.h"

namespace vlmtrain::memory {

namespace {

/// How many scopes of Unwatched this thread is in.
thread_local int disable_depth = 0;

using Watchers = std::vector<std::shared_ptr<AllocationWatcher>>;

/// Memory that watchers heard of when it was given out.
struct WatchedMemory {
  int64_t bytes;
  Watchers watchers;
};

/// In front of PyTorch's allocator. It stays once it was put there: memory that it gave out may outlive any watcher.
/// Pointers are the real allocator's own, since some callers (oneDNN) hold nothing else.
class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator* wrapped) : wrapped_(wrapped) {}

  void watch(std::shared_ptr<AllocationWatcher> watcher) {
    const std::lock_guard lock(mutex_);
    by_thread_[std::this_thread::get_id()].push_back(std::move(watcher));
  }

  void unwatch(const AllocationWatcher& watcher) {
    const std::lock_guard lock(mutex_);
    for (auto& [thread, watchers] : by_thread_) {
      std::erase_if(watchers, [&](const auto& entry) { return entry.get() == &watcher; });
    }
    std::erase_if(by_thread_, [](const auto& entry) { return entry.second.empty(); });
  }

  c10::DataPtr allocate(size_t bytes) override {
    Watchers watchers = disable_depth > 0 ? Watchers() : get_thread_watchers();
    if (watchers.empty()) return wrapped_->allocate(bytes);
    const auto count = static_cast<int64_t>(bytes);
    notify_allocate(watchers, count);
    c10::DataPtr memory = allocate_or_rollback(watchers, bytes);
    if (memory.get() == nullptr) {
      for (const auto& watcher : watchers) watcher->on_free(count);
      return memory;
    }
    const std::lock_guard lock(mutex_);
    allocations_[memory.get()] = {count, std::move(watchers)};
    const bool replaced = memory.compare_exchange_deleter(wrapped_->raw_deleter(), raw_deleter());
    VLMTRAIN_CHECK(replaced, "memory of the CPU allocator with another's deleter");
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &WatchedAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    wrapped_->copy_data(destination, source, bytes);
  }

 private:
  static void free(void* address);

  Watchers get_thread_watchers() {
    const std::lock_guard lock(mutex_);
    const auto it = by_thread_.find(std::this_thread::get_id());
    Watchers active;
    if (it == by_thread_.end()) return active;
    std::ranges::copy_if(it->second, std::back_inserter(active),
                         [](const auto& watcher) { return watcher->is_active(); });
    return active;
  }

  static void notify_allocate(const Watchers& watchers, int64_t bytes) {
    for (auto watcher = watchers.begin(); watcher != watchers.end(); ++watcher) {
      try {
        (*watcher)->on_allocate(bytes);
      } catch (...) {
        std::for_each(watchers.begin(), watcher, [bytes](const auto& earlier) { earlier->on_free(bytes); });
        throw;
      }
    }
  }

  c10::DataPtr allocate_or_rollback(const Watchers& watchers, size_t bytes) {
    try {
      return wrapped_->allocate(bytes);
    } catch (...) {
      for (const auto& watcher : watchers) watcher->on_free(static_cast<int64_t>(bytes));
      throw;
    }
  }

  void notify_free(void* address) {
    WatchedMemory memory;
    {
      const std::lock_guard lock(mutex_);
      const auto it = allocations_.find(address);
      if (it == allocations_.end()) return;  // nobody watched
      memory = std::move(it->second);
      allocations_.erase(it);
    }
    for (const auto& watcher : memory.watchers) watcher->on_free(memory.bytes);
  }

  c10::Allocator* wrapped_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::thread::id, Watchers> by_thread_;
  std::unordered_map<void*, WatchedMemory> allocations_;
};

WatchedAllocator& watched_allocator_instance() {
  static WatchedAllocator* const allocator = [] {
    auto* const instance = new WatchedAllocator(large_block_allocator());  // never freed, see above
    constexpr uint8_t kHighestPriority = 255;
    c10::SetAllocator(c10::DeviceType::CPU, instance, kHighestPriority);
    return instance;
  }();
  return *allocator;
}

void WatchedAllocator::free(void* address) {
  WatchedAllocator& allocator = watched_allocator_instance();
  allocator.notify_free(address);
  allocator.wrapped_->raw_deleter()(address);
}

}  // namespace

ScopedDisableTracking::ScopedDisableTracking() {
  ++disable_depth;
}

ScopedDisableTracking::~ScopedDisableTracking() {
  --disable_depth;
}

void install_watched_allocator() {
  watched_allocator_instance();
}

void watch_allocations(std::shared_ptr<AllocationWatcher> watcher) {
  watched_allocator_instance().watch(std::move(watcher));
}

void unwatch_allocations(const AllocationWatcher& watcher) {
  watched_allocator_instance().unwatch(watcher);
}

}  // namespace vlmtrain::memory

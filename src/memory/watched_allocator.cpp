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
thread_local int unwatched_scopes = 0;

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
  explicit WatchedAllocator(c10::Allocator* real) : real_(real) {}

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
    Watchers watchers = unwatched_scopes > 0 ? Watchers() : watchers_of_this_thread();
    if (watchers.empty()) return real_->allocate(bytes);
    const auto count = static_cast<int64_t>(bytes);
    take(watchers, count);
    c10::DataPtr memory = allocate_or_give_back(watchers, bytes);
    if (memory.get() == nullptr) {
      for (const auto& watcher : watchers) watcher->give_back(count);
      return memory;
    }
    const std::lock_guard lock(mutex_);
    given_out_[memory.get()] = {count, std::move(watchers)};
    const bool replaced = memory.compare_exchange_deleter(real_->raw_deleter(), raw_deleter());
    VLMTRAIN_CHECK(replaced, "memory of the CPU allocator with another's deleter");
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &WatchedAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    real_->copy_data(destination, source, bytes);
  }

 private:
  static void free(void* address);

  Watchers watchers_of_this_thread() {
    const std::lock_guard lock(mutex_);
    const auto found = by_thread_.find(std::this_thread::get_id());
    Watchers listening;
    if (found == by_thread_.end()) return listening;
    std::ranges::copy_if(found->second, std::back_inserter(listening),
                         [](const auto& watcher) { return watcher->is_listening(); });
    return listening;
  }

  static void take(const Watchers& watchers, int64_t bytes) {
    for (auto watcher = watchers.begin(); watcher != watchers.end(); ++watcher) {
      try {
        (*watcher)->take(bytes);
      } catch (...) {
        std::for_each(watchers.begin(), watcher, [bytes](const auto& earlier) { earlier->give_back(bytes); });
        throw;
      }
    }
  }

  c10::DataPtr allocate_or_give_back(const Watchers& watchers, size_t bytes) {
    try {
      return real_->allocate(bytes);
    } catch (...) {
      for (const auto& watcher : watchers) watcher->give_back(static_cast<int64_t>(bytes));
      throw;
    }
  }

  void forget(void* address) {
    WatchedMemory memory;
    {
      const std::lock_guard lock(mutex_);
      const auto found = given_out_.find(address);
      if (found == given_out_.end()) return;  // nobody watched
      memory = std::move(found->second);
      given_out_.erase(found);
    }
    for (const auto& watcher : memory.watchers) watcher->give_back(memory.bytes);
  }

  c10::Allocator* real_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::thread::id, Watchers> by_thread_;
  std::unordered_map<void*, WatchedMemory> given_out_;
};

WatchedAllocator& allocator_in_front() {
  static WatchedAllocator* const allocator = [] {
    auto* const made = new WatchedAllocator(large_block_allocator());  // never freed, see above
    constexpr uint8_t kInFront = 255;
    c10::SetAllocator(c10::DeviceType::CPU, made, kInFront);
    return made;
  }();
  return *allocator;
}

void WatchedAllocator::free(void* address) {
  WatchedAllocator& self = allocator_in_front();
  self.forget(address);
  self.real_->raw_deleter()(address);
}

}  // namespace

Unwatched::Unwatched() {
  ++unwatched_scopes;
}

Unwatched::~Unwatched() {
  --unwatched_scopes;
}

void put_watched_allocator_in_front() {
  allocator_in_front();
}

void watch_allocations(std::shared_ptr<AllocationWatcher> watcher) {
  allocator_in_front().watch(std::move(watcher));
}

void unwatch_allocations(const AllocationWatcher& watcher) {
  allocator_in_front().unwatch(watcher);
}

}  // namespace vlmtrain::memory

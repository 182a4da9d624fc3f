#pragma once

#include <cstdint>
#include <limits>
#include <memory>

namespace vlmtrain::memory {

/// An observer of the memory that a thread allocates for CPU tensors. Methods are called on the
/// allocating or freeing thread.
class AllocationWatcher {
 public:
  virtual ~AllocationWatcher() = default;
  AllocationWatcher() = default;
  AllocationWatcher(const AllocationWatcher&) = delete;
  AllocationWatcher& operator=(const AllocationWatcher&) = delete;

  /// Returns whether the watcher is to be notified of the current allocation.
  virtual bool should_notify() const { return true; }
  /// Called before an allocation. May throw to reject it: nothing is allocated, and the exception
  /// propagates to the caller of the allocator.
  virtual void on_allocate(int64_t bytes) = 0;
  /// Called when memory that was reported to on_allocate() is freed, possibly by another thread, or
  /// when its allocation failed.
  virtual void on_free(int64_t bytes) noexcept = 0;
};

/// Replaces LibTorch's CPU allocator with one that notifies watchers. Idempotent.
/// watch_allocations() calls it.
void install_watched_allocator();

/// Adds a watcher of the calling thread's allocations until unwatch_allocations(). The watcher is
/// notified of the free of each reported allocation, even after unwatch_allocations(). A thread may
/// have several watchers. Thread-safe.
void watch_allocations(std::shared_ptr<AllocationWatcher> watcher);

/// Removes the watcher from all threads. Thread-safe.
void unwatch_allocations(const AllocationWatcher& watcher);

/// A scope in which watchers are not notified of the calling thread's CPU allocations. For a
/// collective call: other ranks have already made it, so it must not fail on this rank alone.
/// Scopes can be nested.
class ScopedDisableTracking {
 public:
  ScopedDisableTracking();
  ~ScopedDisableTracking();
  ScopedDisableTracking(const ScopedDisableTracking&) = delete;
  ScopedDisableTracking& operator=(const ScopedDisableTracking&) = delete;
};

struct BudgetCounter;

/// A counter of the CPU tensor memory that the constructing thread allocates, with an optional
/// limit. Allocations over the limit throw c10::OutOfMemoryError, as PyTorch's CUDA allocator does
/// on a full GPU; without a limit the kernel would kill the process later. Other threads do not
/// count, so the outcome does not depend on how far the data loader is ahead.
///
/// Not thread-safe, except that counted tensors may be freed by any thread.
class HostMemoryBudget {
 public:
  HostMemoryBudget();
  ~HostMemoryBudget();
  HostMemoryBudget(const HostMemoryBudget&) = delete;
  HostMemoryBudget& operator=(const HostMemoryBudget&) = delete;

  /// A scope that rejects allocations beyond `bytes` of live memory. REQUIRES: no other limit of
  /// this budget exists.
  class ScopedLimit {
   public:
    ScopedLimit(HostMemoryBudget& budget, int64_t bytes);
    ~ScopedLimit();
    ScopedLimit(const ScopedLimit&) = delete;
    ScopedLimit& operator=(const ScopedLimit&) = delete;

   private:
    std::shared_ptr<BudgetCounter> counter_;
  };

  /// A scope whose allocations are not counted, however long they live: memory that belongs to no
  /// training step. REQUIRES: no other pause of this budget exists.
  class ScopedPause {
   public:
    explicit ScopedPause(HostMemoryBudget& budget);
    ~ScopedPause();
    ScopedPause(const ScopedPause&) = delete;
    ScopedPause& operator=(const ScopedPause&) = delete;

   private:
    std::shared_ptr<BudgetCounter> counter_;
  };

  /// Returns the live bytes that the thread has allocated since construction.
  int64_t live_bytes() const;
  /// Returns the maximum of live_bytes() since construction or reset_peak().
  int64_t peak_bytes() const;
  /// Sets peak_bytes() to live_bytes().
  void reset_peak();
  /// Returns the number of allocations that the limit rejected.
  int64_t num_rejected_allocations() const;

 private:
  std::shared_ptr<BudgetCounter> counter_;
};

/// Conditions under which CPU tensor allocations fail in a test.
struct AllocationFaults {
  int64_t failing_allocation_index = -1;                      ///< since arm(), from 0; -1: none
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();  ///< allocations fail beyond this live memory
};

struct AllocationCounter;

/// A test fixture that makes PyTorch's CPU allocator throw c10::OutOfMemoryError. Only allocations
/// of the constructing thread count and fail. They include its backward passes on the CPU, which
/// run in the thread that starts them. Several instances count independently.
class AllocationFaultInjector {
 public:
  AllocationFaultInjector();
  ~AllocationFaultInjector();
  AllocationFaultInjector(const AllocationFaultInjector&) = delete;
  AllocationFaultInjector& operator=(const AllocationFaultInjector&) = delete;

  /// Restarts the counts and applies `faults`. Memory that is already live counts toward the limit.
  void arm(AllocationFaults faults);
  /// Lets all further allocations succeed. Restarts the counts too.
  void disarm() { arm({}); }

  /// Returns the number of allocations since arm().
  int64_t num_allocations() const;
  /// Returns the number of allocations since arm() that failed.
  int64_t num_failed_allocations() const;
  /// Returns the live bytes that the thread has allocated since construction.
  int64_t live_bytes() const;
  /// Returns the maximum of live_bytes() since arm().
  int64_t peak_bytes() const;

 private:
  std::shared_ptr<AllocationCounter> counter_;
};

}  // namespace vlmtrain::memory

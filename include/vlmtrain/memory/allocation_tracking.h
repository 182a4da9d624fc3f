#pragma once

#include <cstdint>
#include <limits>
#include <memory>

namespace vlmtrain::memory {

/// Hears of the memory that a thread takes for tensors on the CPU.
class AllocationWatcher {
 public:
  virtual ~AllocationWatcher() = default;
  AllocationWatcher() = default;
  AllocationWatcher(const AllocationWatcher&) = delete;
  AllocationWatcher& operator=(const AllocationWatcher&) = delete;

  /// Whether it is to hear of what its thread takes now.
  virtual bool is_active() const { return true; }
  /// Before it is taken; what this throws goes to whoever asked for memory, and nothing is taken then.
  virtual void on_allocate(int64_t bytes) = 0;
  /// What was taken is given back, maybe by another thread.
  virtual void on_free(int64_t bytes) noexcept = 0;
};

/// LibTorch's memory on the CPU comes through here from now on, whether or not somebody watches.
void install_watched_allocator();

/// From now on `watcher` hears of what the calling thread takes, until unwatch(); of what was taken until then it hears
/// that it is given back, however late. Several may watch a thread.
void watch_allocations(std::shared_ptr<AllocationWatcher> watcher);
void unwatch_allocations(const AllocationWatcher& watcher);

/// While it lives, no limit and no count hears of the memory that this thread takes on the CPU: that of a call which
/// must not fail here alone, since other processes have made it as well.
class ScopedDisableTracking {
 public:
  ScopedDisableTracking();
  ~ScopedDisableTracking();
  ScopedDisableTracking(const ScopedDisableTracking&) = delete;
  ScopedDisableTracking& operator=(const ScopedDisableTracking&) = delete;
};

struct BudgetCounter;

/// Counts the memory of the tensors that the calling thread makes on the CPU, from its construction on, and while a
/// Limit lives refuses what would go over it: PyTorch's allocator throws c10::OutOfMemoryError, as its CUDA allocator
/// does where a card is full, where else the kernel would end the process some time later. What other threads make
/// does not count, so what is refused does not depend on how far the loader is ahead.
class HostBudget {
 public:
  HostBudget();
  ~HostBudget();
  HostBudget(const HostBudget&) = delete;
  HostBudget& operator=(const HostBudget&) = delete;

  /// Nothing is taken beyond `bytes` while it lives. One at a time.
  class Limit {
   public:
    Limit(HostBudget& budget, int64_t bytes);
    ~Limit();
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;

   private:
    std::shared_ptr<BudgetCounter> counter_;
  };

  /// While it lives, what the thread makes is not counted, however long it stays: what is no step's, and for which
  /// there is room elsewhere. One at a time.
  class Pause {
   public:
    explicit Pause(HostBudget& budget);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    std::shared_ptr<BudgetCounter> counter_;
  };

  int64_t live_bytes() const;
  /// The most that lived since reset_peak().
  int64_t peak_bytes() const;
  void reset_peak();
  /// How many allocations were refused.
  int64_t num_rejected() const;

 private:
  std::shared_ptr<BudgetCounter> counter_;
};

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

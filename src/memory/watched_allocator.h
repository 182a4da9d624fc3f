#pragma once

#include <cstdint>
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

}  // namespace vlmtrain::memory

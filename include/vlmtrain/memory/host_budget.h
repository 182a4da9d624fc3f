#pragma once

#include <cstdint>
#include <limits>
#include <memory>

namespace vlmtrain::memory {

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

}  // namespace vlmtrain::memory

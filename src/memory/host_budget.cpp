#include "vlmtrain/memory/host_budget.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "memory/watched_allocator.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

struct BudgetCounter final : AllocationWatcher {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t limit_bytes = kUnlimited;
  int64_t peak_bytes = 0;
  int64_t num_rejected = 0;
  bool is_paused = false;
  std::atomic<int64_t> live_bytes{0};  // tensors may die in other threads

  bool is_active() const override { return !is_paused; }

  void on_allocate(int64_t bytes) override {
    if (bytes > limit_bytes - live_bytes) {
      ++num_rejected;
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       fmt::format("{:.3f} GB more than the {:.3f} GB in use would be over the run's limit of {:.3f} "
                                   "GB of the host's memory for tensors",
                                   to_gigabytes(bytes), to_gigabytes(live_bytes), to_gigabytes(limit_bytes)));
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void on_free(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

HostBudget::HostBudget() : counter_(std::make_shared<BudgetCounter>()) {
  watch_allocations(counter_);
}

HostBudget::~HostBudget() {
  unwatch_allocations(*counter_);
}

HostBudget::Limit::Limit(HostBudget& budget, int64_t bytes) : counter_(budget.counter_) {
  VLMTRAIN_CHECK(counter_->limit_bytes == BudgetCounter::kUnlimited, "two limits of the host's memory at once");
  counter_->limit_bytes = bytes;
}

HostBudget::Limit::~Limit() {
  counter_->limit_bytes = BudgetCounter::kUnlimited;
}

HostBudget::Pause::Pause(HostBudget& budget) : counter_(budget.counter_) {
  VLMTRAIN_CHECK(!counter_->is_paused, "two pauses of one budget");
  counter_->is_paused = true;
}

HostBudget::Pause::~Pause() {
  counter_->is_paused = false;
}

int64_t HostBudget::live_bytes() const {
  return counter_->live_bytes;
}

int64_t HostBudget::peak_bytes() const {
  return counter_->peak_bytes;
}

void HostBudget::reset_peak() {
  counter_->peak_bytes = counter_->live_bytes;
}

int64_t HostBudget::num_rejected() const {
  return counter_->num_rejected;
}

}  // namespace vlmtrain::memory

#include "vlmtrain/memory/host_budget.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "memory/watched_allocator.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

struct BudgetCount final : AllocationWatcher {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t limit_bytes = kUnlimited;
  int64_t peak_bytes = 0;
  int64_t refusals = 0;
  bool is_paused = false;
  std::atomic<int64_t> live_bytes{0};  // tensors may die in other threads

  bool is_listening() const override { return !is_paused; }

  void take(int64_t bytes) override {
    if (bytes > limit_bytes - live_bytes) {
      ++refusals;
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       fmt::format("{:.3f} GB more than the {:.3f} GB in use would be over the run's limit of {:.3f} "
                                   "GB of the host's memory for tensors",
                                   in_gigabytes(bytes), in_gigabytes(live_bytes), in_gigabytes(limit_bytes)));
    }
    live_bytes += bytes;
    peak_bytes = std::max<int64_t>(peak_bytes, live_bytes);
  }

  void give_back(int64_t bytes) noexcept override { live_bytes -= bytes; }
};

HostBudget::HostBudget() : count_(std::make_shared<BudgetCount>()) {
  watch_allocations(count_);
}

HostBudget::~HostBudget() {
  unwatch_allocations(*count_);
}

HostBudget::Limit::Limit(HostBudget& budget, int64_t bytes) : count_(budget.count_) {
  VLMTRAIN_CHECK(count_->limit_bytes == BudgetCount::kUnlimited, "two limits of the host's memory at once");
  count_->limit_bytes = bytes;
}

HostBudget::Limit::~Limit() {
  count_->limit_bytes = BudgetCount::kUnlimited;
}

HostBudget::Pause::Pause(HostBudget& budget) : count_(budget.count_) {
  VLMTRAIN_CHECK(!count_->is_paused, "two pauses of one budget");
  count_->is_paused = true;
}

HostBudget::Pause::~Pause() {
  count_->is_paused = false;
}

int64_t HostBudget::live_bytes() const {
  return count_->live_bytes;
}

int64_t HostBudget::peak_bytes() const {
  return count_->peak_bytes;
}

void HostBudget::reset_peak() {
  count_->peak_bytes = count_->live_bytes;
}

int64_t HostBudget::refusals() const {
  return count_->refusals;
}

}  // namespace vlmtrain::memory

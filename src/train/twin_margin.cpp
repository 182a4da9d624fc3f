#include "train/twin_margin.h"

#include <algorithm>

namespace vlmtrain::train {

namespace {

constexpr size_t kComparedSteps = 20;
constexpr int64_t kMinRaiseBytes = int64_t{64} << 20;
constexpr int64_t kRaiseDivisor = 50;     // of the limit
constexpr int64_t kMaxMarginDivisor = 4;  // so that something is left to plan with
constexpr int64_t kMaxGoodSteps = 640;

}  // namespace

void LookAheadMargin::raise() {
  const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;
  raised_bytes_ = std::min(max_bytes, raised_bytes_ + std::max(kMinRaiseBytes, limit_bytes_ / kRaiseDivisor));
  good_steps_ = 0;
  good_steps_to_halve_ = std::min(kMaxGoodSteps, 2 * good_steps_to_halve_);
}

void LookAheadMargin::record_success(int64_t excess_bytes) {
  excess_bytes_.push_back(excess_bytes);
  if (excess_bytes_.size() > kComparedSteps) excess_bytes_.pop_front();
  if (raised_bytes_ == 0 || ++good_steps_ < good_steps_to_halve_) return;
  good_steps_ = 0;
  raised_bytes_ = raised_bytes_ > kMinRaiseBytes / 2 ? raised_bytes_ / 2 : 0;
}

int64_t LookAheadMargin::bytes() const {
  const int64_t max_excess = excess_bytes_.empty() ? 0 : *std::max_element(excess_bytes_.begin(), excess_bytes_.end());
  return raised_bytes_ + std::max<int64_t>(0, max_excess);
}

}  // namespace vlmtrain::train

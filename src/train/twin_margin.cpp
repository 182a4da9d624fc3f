#include "train/twin_margin.h"

#include <algorithm>

namespace vlmtrain::train {

namespace {

constexpr size_t kComparedSteps = 20;
constexpr int64_t kLeastRise = int64_t{64} << 20;
constexpr int64_t kRiseShare = 50;  // of the limit
constexpr int64_t kMostShare = 4;   // so that something is left to plan with
constexpr int64_t kMostGoodSteps = 640;

}  // namespace

void TwinMargin::raise() {
  const int64_t most = limit_bytes_ / kMostShare;
  raised_bytes_ = std::min(most, raised_bytes_ + std::max(kLeastRise, limit_bytes_ / kRiseShare));
  good_steps_ = 0;
  good_steps_to_fall_ = std::min(kMostGoodSteps, 2 * good_steps_to_fall_);
}

void TwinMargin::went_well(int64_t excess_bytes) {
  excess_bytes_.push_back(excess_bytes);
  if (excess_bytes_.size() > kComparedSteps) excess_bytes_.pop_front();
  if (raised_bytes_ == 0 || ++good_steps_ < good_steps_to_fall_) return;
  good_steps_ = 0;
  raised_bytes_ = raised_bytes_ > kLeastRise / 2 ? raised_bytes_ / 2 : 0;
}

int64_t TwinMargin::bytes() const {
  const int64_t most_excess = excess_bytes_.empty() ? 0 : *std::max_element(excess_bytes_.begin(), excess_bytes_.end());
  return raised_bytes_ + std::max<int64_t>(0, most_excess);
}

}  // namespace vlmtrain::train

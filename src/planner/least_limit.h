#pragma once

#include <cstdint>
#include <optional>

namespace vlmtrain::planner {

/// The least memory.limit_gb above `gigabytes` that `is_sufficient` of, in steps of a hundredth up to 10 GB and of a
/// tenth from there on; nothing if that is above `max_gigabytes`.
template <class IsSufficient>
std::optional<double> find_min_limit(double gigabytes, double max_gigabytes, const IsSufficient& is_sufficient) {
  constexpr int64_t kHundredths = 100, kTenthsInHundredths = 10, kCoarseThreshold = 10 * kHundredths;
  for (auto hundredths = static_cast<int64_t>(gigabytes * kHundredths) + 1;; ++hundredths) {
    if (hundredths > kCoarseThreshold)
      hundredths = (hundredths + kTenthsInHundredths - 1) / kTenthsInHundredths * kTenthsInHundredths;
    const double limit = static_cast<double>(hundredths) / kHundredths;
    if (limit > max_gigabytes) return std::nullopt;
    if (is_sufficient(limit)) return limit;
  }
}

}  // namespace vlmtrain::planner

#pragma once

#include <cstdint>
#include <optional>

namespace vlmtrain::planner {

/// The least memory.limit_gb above `gigabytes` that `is_enough` of, in steps of a hundredth up to 10 GB and of a tenth
/// from there on; nothing if that is above `most_gigabytes`.
template <class IsEnough>
std::optional<double> least_limit(double gigabytes, double most_gigabytes, const IsEnough& is_enough) {
  constexpr int64_t kHundredths = 100, kInTenths = 10, kCoarseFrom = 10 * kHundredths;
  for (auto number = static_cast<int64_t>(gigabytes * kHundredths) + 1;; ++number) {
    if (number > kCoarseFrom) number = (number + kInTenths - 1) / kInTenths * kInTenths;
    const double limit = static_cast<double>(number) / kHundredths;
    if (limit > most_gigabytes) return std::nullopt;
    if (is_enough(limit)) return limit;
  }
}

}  // namespace vlmtrain::planner

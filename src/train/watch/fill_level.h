#pragma once

#include <cstdint>

namespace vlmtrain::train {

/// Whether a memory is nearly full, said once: again only after it was clearly less so.
class FillLevel {
 public:
  /// Of `total_bytes`, 0 where that is unknown. True when more than 95 % are used for the first time, or for the first
  /// time since less than 90 % were.
  bool crosses_threshold(int64_t used_bytes, int64_t total_bytes) {
    if (total_bytes <= 0) return false;
    const double share = static_cast<double>(used_bytes) / static_cast<double>(total_bytes);
    if (share < kResetShare) was_reported_ = false;
    if (share <= kFullShare || was_reported_) return false;
    was_reported_ = true;
    return true;
  }

 private:
  static constexpr double kFullShare = 0.95;
  static constexpr double kResetShare = 0.90;
  bool was_reported_ = false;
};

}  // namespace vlmtrain::train

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace vlmtrain::engine {

/// The shape of the learning rate schedule after the warm-up.
enum class ScheduleShape { kCosine, kLinear, kConstant };

/// A learning rate schedule: linear warm-up from zero, then cosine or linear decay to zero, or
/// constant.
struct LearningRateSchedule {
  ScheduleShape shape = ScheduleShape::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  /// Returns the factor of the peak learning rate in step `step`, counted from 0. During the
  /// warm-up it is (step + 1) / warmup_steps, so no step has rate 0. After the warm-up, with p =
  /// (step − warmup_steps) / (total_steps − warmup_steps) ≤ 1, it is ½ (1 + cos π p) for cosine, 1
  /// − p for linear, and 1 for constant.
  double compute_factor(int64_t step) const {
    if (step < warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (shape == ScheduleShape::kConstant) return 1.0;
    const double decay_steps = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
    const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / decay_steps);
    if (shape == ScheduleShape::kLinear) return 1.0 - progress;
    return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
};

/// The terms of a loss over text and masks, divided by their normalizers, without their weights.
struct TextAndMaskLosses {
  double text = 0;  ///< weighted mean of the cross-entropy of the label tokens
  double bce = 0;   ///< mean binary cross-entropy of the masks' pixels
  double dice = 0;  ///< mean Dice loss of the masks
};

/// The weights of the terms of a loss over text and masks.
struct TextAndMaskLossWeights {
  double text = 1.0;  ///< cross-entropy of the label tokens
  double bce = 2.0;   ///< binary cross-entropy of the masks' pixels
  double dice = 0.5;  ///< Dice loss of the masks

  bool operator==(const TextAndMaskLossWeights&) const = default;
};

}  // namespace vlmtrain::engine

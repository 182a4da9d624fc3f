#pragma once

#include <cstdint>

namespace vlmtrain::engine {

enum class ScheduleShape { kCosine, kLinear, kConstant };

/// The learning rate's course: warm-up from zero, then cosine or linear to zero, or constant.
struct Schedule {
  ScheduleShape shape = ScheduleShape::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  /// What the learning rate of step `step` (from 0) is multiplied by. Warm-up gives step 0 the first step's share,
  /// (step + 1) / warmup_steps, so that no step runs with rate 0; after it, with p = (step − warmup) / (total −
  /// warmup): cosine ½ (1 + cos π p), linear 1 − p, constant 1.
  double factor(int64_t step) const;
};

}  // namespace vlmtrain::engine

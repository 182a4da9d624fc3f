#include "vlmtrain/engine/settings/training_settings.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vlmtrain::engine {

double Schedule::factor(int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == ScheduleShape::kConstant) return 1.0;
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / decay_steps);
  if (shape == ScheduleShape::kLinear) return 1.0 - progress;
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace vlmtrain::engine

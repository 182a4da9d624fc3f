#include "train/watch/anomaly_watch.h"

#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kMaxConsecutiveSkips = 3;
/// Below it an overflow is no longer one of scale.
constexpr double kMinLossScale = 1;

}  // namespace

/// One that a lower scale may mend: a scale that does not go down from one skipped step to the next mends nothing.
bool AnomalyWatch::is_scale_overflow(const report::StepMetrics& metrics) {
  const auto previous = std::exchange(last_skipped_scale_, metrics.loss_scale);
  return metrics.loss_scale && *metrics.loss_scale > kMinLossScale && std::isfinite(metrics.loss) &&
         (!previous || *metrics.loss_scale < *previous);
}

void AnomalyWatch::observe(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (!metrics.skipped) {
    consecutive_skips_ = 0;
    last_skipped_scale_.reset();
    return;
  }
  if (is_scale_overflow(metrics)) {
    events_.on_event({.step = metrics.step,
                      .kind = report::EventKind::kSkippedStep,
                      .message = fmt::format("step {}: gradients overflowed with a loss scale of {:g}; the step is "
                                             "skipped and the scale halved",
                                             metrics.step, *metrics.loss_scale),
                      .ids = step.sample_ids});
    return;
  }
  const std::string numbers = fmt::format("loss {} with gradient norm {}", metrics.loss, metrics.grad_norm);
  events_.on_event({.step = metrics.step,
                    .kind = report::EventKind::kAnomaly,
                    .message = fmt::format("step {}: {}; the step is skipped. Its samples: {}", metrics.step, numbers,
                                           fmt::join(step.sample_ids, ", ")),
                    .ids = step.sample_ids});
  if (++consecutive_skips_ < kMaxConsecutiveSkips) return;
  throw run_error(
      "step {}: {}, and so in the {} steps before; nothing of them was applied and the last checkpoint is whole. Its "
      "samples: {}. Lower training.learning_rate, or look at the samples that events.jsonl names",
      metrics.step, numbers, kMaxConsecutiveSkips - 1, fmt::join(step.sample_ids, ", "));
}

}  // namespace vlmtrain::train

#include "train/watch/gradient_watch.h"

#include <fmt/format.h>

namespace vlmtrain::train {

void GradientWatch::observe(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (metrics.skipped || metrics.is_dry_run) return;
  ++steps_;
  num_media_ += metrics.num_media;
  if (metrics.grad_norm != 0) return;
  ++steps_without_gradient_;
  if (steps_ != 1) return;
  events_.on_event(
      {.step = metrics.step,
       .kind = report::EventKind::kAnomaly,
       .message = fmt::format("step {}: the gradient of all trained weights is zero, so nothing is learned; {}",
                              metrics.step, reason()),
       .ids = step.sample_ids});
}

std::string GradientWatch::reason() const {
  if (num_media_ == 0) {
    return fmt::format(
        "trained are {}, and none of the samples{} has an image, video or volume that would lead there; train another "
        "part (model.freeze_…, lora.target_modules), or check the data with vlmtrain inspect",
        trained_parts_, has_media_ ? " so far" : "");
  }
  return fmt::format(
      "trained are {}; check model.freeze_…, lora.target_modules and the weights of the losses, and the data with "
      "vlmtrain inspect",
      trained_parts_);
}

}  // namespace vlmtrain::train

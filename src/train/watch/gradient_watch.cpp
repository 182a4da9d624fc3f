#include "train/watch/gradient_watch.h"

#include <fmt/format.h>

namespace vlmtrain::train {

void GradientWatch::look_at(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (metrics.skipped || metrics.rehearsed) return;
  ++steps_;
  media_ += metrics.images;
  if (metrics.grad_norm != 0) return;
  ++without_;
  if (steps_ != 1) return;
  events_.event(
      {.step = metrics.step,
       .kind = report::EventKind::kAnomaly,
       .message = fmt::format("step {}: the gradient of all trained weights is zero, so nothing is learned; {}",
                              metrics.step, reason()),
       .ids = step.sample_ids});
}

std::string GradientWatch::reason() const {
  if (media_ == 0) {
    return fmt::format(
        "trained are {}, and none of the samples{} has an image, video or volume that would lead there; train another "
        "part (model.freeze_…, lora.target_modules), or check the data with vlmtrain inspect",
        trained_, has_media_ ? " so far" : "");
  }
  return fmt::format(
      "trained are {}; check model.freeze_…, lora.target_modules and the weights of the losses, and the data with "
      "vlmtrain inspect",
      trained_);
}

}  // namespace vlmtrain::train

#include "train/watch/gradient_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::train {

namespace {

const std::pair<nn::Component, const char*> kComponentNames[]{{nn::Component::kVisionTower, "the vision tower"},
                                                              {nn::Component::kProjector, "the projector"},
                                                              {nn::Component::kLanguageModel, "the language model"},
                                                              {nn::Component::kMaskEncoder, "the mask encoder"},
                                                              {nn::Component::kMaskDecoder, "the mask decoder"}};

}  // namespace

bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component) {
  return std::ranges::any_of(parameters.all(), [component](const nn::Parameter& parameter) {
    return parameter.component == component && parameter.tensor.requires_grad();
  });
}

std::string describe_trained_parts(const nn::ParameterStore& parameters) {
  std::vector<std::string> names;
  for (const auto& [component, name] : kComponentNames) {
    if (is_component_trained(parameters, component)) names.emplace_back(name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media) {
  if (has_media || is_component_trained(parameters, nn::Component::kLanguageModel)) return;
  throw usage_error(
      "{}: the run trains only {}, but none of the samples of {} has an image, video or volume, so no trained weight "
      "would get a gradient; train another part, or check with vlmtrain inspect why the samples have no media",
      config.lora.rank > 0 ? keys::lora::kTargetModules : keys::model::kFreezeLanguageModel,
      describe_trained_parts(parameters), config.data.train.name());
}

namespace {

/// Number of consecutive skipped steps that end the run. One or two bad batches occur in healthy
/// runs; after three in a row the weights do not recover. Not tuned.
constexpr int64_t kMaxConsecutiveSkips = 3;
/// Up to this loss scale, an overflow is a problem of the model and not of the scale, since scaling
/// by 1 has no effect.
constexpr double kMinLossScale = 1;

}  // namespace

/// Returns whether a lower loss scale may prevent the overflow. False if the scale has not fallen
/// since the previous skipped step, because it is constant or has reached its minimum.
bool AnomalyWatch::is_recoverable_overflow(const report::StepMetrics& metrics) const {
  return metrics.loss_scale && *metrics.loss_scale > kMinLossScale && std::isfinite(metrics.loss) &&
         (!last_skipped_loss_scale_ || *metrics.loss_scale < *last_skipped_loss_scale_);
}

void AnomalyWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (!metrics.skipped) {
    num_consecutive_skips_ = 0;
    last_skipped_loss_scale_.reset();
    return;
  }
  const bool is_recoverable = is_recoverable_overflow(metrics);
  last_skipped_loss_scale_ = metrics.loss_scale;
  if (is_recoverable) {
    callbacks_.on_event({.step = metrics.step,
                         .kind = report::EventKind::kSkippedStep,
                         .message = fmt::format("step {}: gradients overflowed with a loss scale of {:g}; the step is "
                                                "skipped and the scale halved",
                                                metrics.step, *metrics.loss_scale),
                         .ids = step.sample_ids});
    return;
  }
  const std::string loss_and_norm_text = fmt::format("loss {} with gradient norm {}", metrics.loss, metrics.grad_norm);
  callbacks_.on_event({.step = metrics.step,
                       .kind = report::EventKind::kAnomaly,
                       .message = fmt::format("step {}: {}; the step is skipped. Its samples: {}", metrics.step,
                                              loss_and_norm_text, fmt::join(step.sample_ids, ", ")),
                       .ids = step.sample_ids});
  if (++num_consecutive_skips_ < kMaxConsecutiveSkips) return;
  throw run_error(
      "step {}: {}, as in the {} steps before; none of them was applied, and the last checkpoint is intact. Its "
      "samples: {}. Lower {}, or check the samples in events.jsonl",
      metrics.step, loss_and_norm_text, kMaxConsecutiveSkips - 1, fmt::join(step.sample_ids, ", "),
      keys::training::kLearningRate);
}

void GradientWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (metrics.skipped || metrics.is_dry_run) return;
  ++num_counted_steps_;
  num_media_ += metrics.num_media;
  if (metrics.grad_norm != 0) return;
  ++num_steps_without_gradient_;
  if (num_counted_steps_ != 1) return;
  callbacks_.on_event(
      {.step = metrics.step,
       .kind = report::EventKind::kAnomaly,
       .message = fmt::format("step {}: the gradient of all trained weights is zero, so nothing is learned; {}",
                              metrics.step, reason()),
       .ids = step.sample_ids});
}

std::string GradientWatch::reason() const {
  if (num_media_ == 0) {
    return fmt::format(
        "the run trains only {}, but none of the samples{} has an image, video or volume for it; train another part "
        "(model.freeze_…, {}), or check the data with vlmtrain inspect",
        trained_part_names_, has_media_ ? " so far" : "", keys::lora::kTargetModules);
  }
  return fmt::format(
      "the run trains {}; check model.freeze_…, {} and the weights of the losses, and the data with vlmtrain inspect",
      trained_part_names_, keys::lora::kTargetModules);
}

void check_run_has_learned(const Config& config, const RunState& state, const GradientWatch& gradient_watch,
                           bool resumed, bool stopped_early) {
  if (stopped_early && !state.evaluation.best_metric_value) {
    const BestMetric metric = config.evaluation.best_metric;
    const bool is_loss_metric = metric == BestMetric::kLoss;
    throw run_error(
        "none of the run's evaluations had a finite loss{}, so none of its checkpoints is known to be usable; lower "
        "{}{}, and start again in another {}",
        is_loss_metric ? "" : fmt::format(" and a value of {}={}", keys::training::kBestMetric, to_string(metric)),
        keys::training::kLearningRate,
        is_loss_metric ? ""
                       : fmt::format(" if the loss is not finite, otherwise use {}=loss", keys::training::kBestMetric),
        keys::output::kDir);
  }
  if (gradient_watch.is_gradient_always_zero() && !resumed) {
    throw run_error(
        "the gradient of all trained weights was zero in each step of the run, so nothing was learned: {}; then start "
        "again in another {}",
        gradient_watch.reason(), keys::output::kDir);
  }
  if (state.num_skipped_steps < state.step) return;
  throw run_error(
      "all {} steps of the run were skipped, since loss or gradients were not finite: the weights are those of {}. "
      "Lower {}, or check that checkpoint and the samples in events.jsonl; then start again in another {}",
      state.step, config.model.path, keys::training::kLearningRate, keys::output::kDir);
}

}  // namespace vlmtrain::train

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/run/callbacks.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// Returns whether a parameter of `component` is trained.
bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component);

/// Returns the trained parts of a model for people, for example "the vision tower and the
/// projector".
std::string describe_trained_parts(const nn::ParameterStore& parameters);

/// Throws UserError (kUsage) if no sample has media and only parts are trained that text does
/// not reach: no trained weight would get a gradient.
void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media);

/// Watches for steps that were skipped because their loss or gradient was not finite. Raises an
/// event with the samples for each, and throws UserError (kFailed) after three in a row. With fp16,
/// gradients that overflow do not count while the loss scale can still be lowered.
class AnomalyWatch {
 public:
  explicit AnomalyWatch(CallbackList& events) : events_(events) {}

  /// Called after the step was reported.
  void observe(const StepReport& step);

 private:
  bool is_scale_overflow(const report::StepMetrics& metrics);

  CallbackList& events_;
  int64_t consecutive_skips_ = 0;
  std::optional<double> last_skipped_scale_;  // of the current series of skipped steps
};

/// Watches for steps with a gradient of exactly zero, from which nothing is learned. Raises an
/// event for the run's first step only, since a later step's samples may have nothing for the
/// trained parts.
class GradientWatch {
 public:
  /// `trained_parts`: describe_trained_parts(). `has_media`: samples may have media.
  GradientWatch(CallbackList& events, std::string trained_parts, bool has_media)
      : events_(events), trained_parts_(std::move(trained_parts)), has_media_(has_media) {}

  /// Called after the step was reported.
  void observe(const StepReport& step);

  /// Returns whether there were steps and all of them had a gradient of zero.
  bool has_no_gradient() const { return steps_ > 0 && steps_ == steps_without_gradient_; }
  /// Returns a possible reason with advice.
  std::string reason() const;

 private:
  CallbackList& events_;
  std::string trained_parts_;
  bool has_media_;
  int64_t steps_ = 0;  // without skipped steps
  int64_t steps_without_gradient_ = 0;
  int64_t num_media_ = 0;  // of all counted steps
};

/// Throws UserError (kFailed) if a completed run learned nothing: it stopped early
/// (`stopped_early`) without a finite evaluation, all gradients were zero, or every step was
/// skipped.
void check_run_trained(const Config& config, const RunState& state, const GradientWatch& gradient_watch, bool resumed,
                       bool stopped_early);

}  // namespace vlmtrain::train

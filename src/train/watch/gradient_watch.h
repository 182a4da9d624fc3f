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

/// Returns the trained parts of a model for messages, for example "the vision tower and the
/// projector".
std::string describe_trained_parts(const nn::ParameterStore& parameters);

/// Throws UserError (kUsage) if no sample has media (`has_media` is false) and the language model
/// is not trained, because no trained weight would get a gradient.
void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media);

/// A watch for steps that were skipped because their loss or gradient was not finite. It raises an
/// event with the samples of each, and throws UserError (kFailed) after three in a row. With fp16,
/// overflows of gradients do not count while the loss scale can still be lowered.
class AnomalyWatch {
 public:
  /// `callbacks` receives the events and must outlive the object.
  explicit AnomalyWatch(CallbackList& callbacks) : callbacks_(callbacks) {}

  /// Observes a step, in the order of steps. Called after the step was reported.
  void observe_step(const StepReport& step);

 private:
  bool is_recoverable_overflow(const report::StepMetrics& metrics) const;

  CallbackList& callbacks_;
  int64_t num_consecutive_skips_ = 0;
  std::optional<double> last_skipped_loss_scale_;  // of the current series of skipped steps
};

/// A watch for steps whose gradient is exactly zero, so that the model learns nothing. It raises an
/// event only for the first step of the process, since the samples of a later step may lack the
/// media that the trained parts need.
class GradientWatch {
 public:
  /// `callbacks` receives the event and must outlive the object. `trained_parts`:
  /// describe_trained_parts(). `has_media`: some sample may have media.
  GradientWatch(CallbackList& callbacks, std::string trained_parts, bool has_media)
      : callbacks_(callbacks), trained_part_names_(std::move(trained_parts)), has_media_(has_media) {}

  /// Observes a step, in the order of steps. Called after the step was reported.
  void observe_step(const StepReport& step);

  /// Returns whether there were steps and all of them had a gradient of zero.
  bool is_gradient_always_zero() const {
    return num_counted_steps_ > 0 && num_counted_steps_ == num_steps_without_gradient_;
  }
  /// Returns a possible reason with advice.
  std::string reason() const;

 private:
  CallbackList& callbacks_;
  std::string trained_part_names_;
  bool has_media_;
  int64_t num_counted_steps_ = 0;  // without skipped steps
  int64_t num_steps_without_gradient_ = 0;
  int64_t num_media_ = 0;  // media in the counted steps
};

/// Throws UserError (kFailed) if a completed run has learned nothing: it stopped early
/// (`stopped_early`) without a finite evaluation, all gradients were zero, or every step was
/// skipped. `resumed`: the run has steps of earlier processes, whose gradients are not known.
void check_run_has_learned(const Config& config, const RunState& state, const GradientWatch& gradient_watch,
                           bool resumed, bool stopped_early);

}  // namespace vlmtrain::train

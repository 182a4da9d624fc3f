#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/run/callbacks.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// Returns whether a parameter of `component` is trained.
bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component);

/// The trained parts of a model, for people: "the vision tower and the projector".
std::string describe_trained_parts(const nn::ParameterStore& parameters);

/// Throws UserError (kUsage) where no sample has media and only parts are trained that media alone lead to: no trained
/// weight would get a gradient.
void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media);

/// Steps that were skipped because their loss or gradient was not finite: an event with the samples for each; three in
/// a row stop the run with a UserError (kFailed). With fp16, gradients that overflow are the loss scale's business, as
/// long as it has room to go down.
class AnomalyWatch {
 public:
  explicit AnomalyWatch(CallbackList& events) : events_(events) {}

  /// When it has been reported.
  void observe(const StepReport& step);

 private:
  bool is_scale_overflow(const report::StepMetrics& metrics);

  CallbackList& events_;
  int64_t consecutive_skips_ = 0;
  std::optional<double> last_skipped_scale_;  // of the steps skipped in a row up to now
};

/// Steps whose gradient is exactly zero: nothing is learned from their samples. The first step of a run that has none
/// is an event; one of later steps is no news, since a sample may have nothing for the trained parts.
class GradientWatch {
 public:
  /// `trained_parts`: the trained parts of the model, for people. `has_media`: samples may have media.
  GradientWatch(CallbackList& events, std::string trained_parts, bool has_media)
      : events_(events), trained_parts_(std::move(trained_parts)), has_media_(has_media) {}

  /// When it has been reported.
  void observe(const StepReport& step);

  /// Whether there were steps, and all of them had a gradient of zero.
  bool has_no_gradient() const { return steps_ > 0 && steps_ == steps_without_gradient_; }
  /// Why that may be, and what to do.
  std::string reason() const;

 private:
  CallbackList& events_;
  std::string trained_parts_;
  bool has_media_;
  int64_t steps_ = 0;                   // that were not skipped
  int64_t steps_without_gradient_ = 0;  // of these, without a gradient
  int64_t num_media_ = 0;               // of their samples
};

/// Throws UserError (kFailed) where a run that has done its steps learned nothing: no evaluation has a value although
/// the run stopped for the lack of a better one (`stopped_early`), all gradients were zero, or each step was skipped.
void check_run_trained(const Config& config, const RunState& state, const GradientWatch& gradient_watch, bool resumed,
                       bool stopped_early);

}  // namespace vlmtrain::train

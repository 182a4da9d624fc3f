#pragma once

#include <cstdint>
#include <string>

#include "train/callbacks/callback_list.h"

namespace vlmtrain::train {

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

}  // namespace vlmtrain::train

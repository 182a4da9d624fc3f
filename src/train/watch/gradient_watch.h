#pragma once

#include <cstdint>
#include <string>

#include "train/callbacks/callback_list.h"

namespace vlmtrain::train {

/// Steps whose gradient is exactly zero: nothing is learned from their samples. The first step of a run that has none
/// is an event; one of later steps is no news, since a sample may have nothing for the trained parts.
class GradientWatch {
 public:
  /// `trained`: the trained parts of the model, for people. `has_media`: samples may have media.
  GradientWatch(CallbackList& events, std::string trained, bool has_media)
      : events_(events), trained_(std::move(trained)), has_media_(has_media) {}

  /// When it has been reported.
  void look_at(const StepReport& step);

  /// Whether there were steps, and all of them had a gradient of zero.
  bool is_without_gradient() const { return steps_ > 0 && steps_ == without_; }
  /// Why that may be, and what to do.
  std::string reason() const;

 private:
  CallbackList& events_;
  std::string trained_;
  bool has_media_;
  int64_t steps_ = 0;    // that were not skipped
  int64_t without_ = 0;  // of these, without a gradient
  int64_t media_ = 0;    // of their samples
};

}  // namespace vlmtrain::train

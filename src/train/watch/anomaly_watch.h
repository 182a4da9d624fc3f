#pragma once

#include <optional>

#include "train/callbacks/callback_list.h"

namespace vlmtrain::train {

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

}  // namespace vlmtrain::train

#pragma once

#include "train/callbacks/callback.h"
#include "vlmtrain/report/progress.h"

namespace vlmtrain::train {

/// The bar on stderr; events are logged above it.
class ProgressBar final : public Callback {
 public:
  ProgressBar(int64_t total_steps, bool quiet) : progress_(total_steps, quiet) {}

  void on_step(const StepReport& step) override { progress_.show(step.metrics); }
  void on_event(const report::Event& event) override;
  void on_end(bool /*well*/) override { progress_.clear(); }

 private:
  report::Progress progress_;
};

}  // namespace vlmtrain::train

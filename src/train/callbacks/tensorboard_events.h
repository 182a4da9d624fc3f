#pragma once

#include "train/callbacks/callback.h"
#include "vlmtrain/report/tensorboard.h"

namespace vlmtrain::train {

/// TensorBoard's event files, in `tensorboard/` of the run's folder.
class TensorBoardEvents final : public Callback {
 public:
  TensorBoardEvents(const std::filesystem::path& run_folder, int64_t resumed_step)
      : events_(run_folder / "tensorboard", resumed_step) {}

  void on_step(const StepReport& step) override { events_.step(step.metrics); }
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override {
    events_.evaluation(step, evaluation);
  }
  void on_event(const report::Event& event) override { events_.text(event.step, "events", event.message); }
  void on_prediction(const report::Prediction& prediction) override { events_.prediction(prediction); }

 private:
  report::TensorBoard events_;
};

}  // namespace vlmtrain::train

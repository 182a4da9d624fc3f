#pragma once

#include <optional>

#include "train/callbacks/callback.h"

namespace vlmtrain::train {

/// metrics.jsonl, a line a step; events.jsonl, a line an event; predictions.jsonl, a line an answer; with `log_samples`
/// samples.jsonl, the ids of each step.
class MetricsFiles final : public Callback {
 public:
  MetricsFiles(const std::filesystem::path& run_folder, int64_t resumed_step, bool log_samples);

  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::Event& event) override;
  void on_prediction(const report::Prediction& prediction) override;

 private:
  report::StepLog metrics_;
  report::StepLog events_;
  report::StepLog predictions_;
  std::optional<report::StepLog> samples_;
};

}  // namespace vlmtrain::train

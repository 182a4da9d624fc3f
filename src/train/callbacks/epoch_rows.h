#pragma once

#include <filesystem>
#include <optional>

#include "train/callbacks/callback.h"
#include "vlmtrain/report/run_epochs.h"

namespace vlmtrain::train {

/// After MetricsFiles, epochs.jsonl: a row when an epoch ends, and at the run's end one for the epoch that was begun.
/// They follow from metrics.jsonl alone: a run that goes on makes those before it again, in the middle of an epoch too.
class EpochRows final : public Callback {
 public:
  explicit EpochRows(const std::filesystem::path& run_folder);

  void on_past_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_end(bool succeeded) override;

 private:
  void restart();

  std::filesystem::path run_folder_;
  report::EpochSummaries epochs_;
  std::optional<report::StepLog> rows_;
};

}  // namespace vlmtrain::train

#pragma once

#include <optional>

#include "train/callbacks/callback.h"
#include "vlmtrain/report/progress.h"

namespace vlmtrain::train {

/// The bar on stderr; evaluations and events are logged above it.
class ProgressBar final : public Callback {
 public:
  ProgressBar(int64_t total_steps, bool quiet, report::BestMetric metric = report::BestMetric::kLoss)
      : progress_(total_steps, quiet), metric_(metric) {}

  void on_past_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::Event& event) override;
  void on_end(bool /*well*/) override { progress_.clear(); }

 private:
  /// By what evaluations are compared.
  bool is_at_least_as_good(const report::EvaluationBaseline& current, const report::EvaluationBaseline& best) const;
  void log_evaluation(const report::StepMetrics& metrics);

  report::Progress progress_;
  report::BestMetric metric_;
  std::optional<report::EvaluationBaseline> best_;
};

}  // namespace vlmtrain::train

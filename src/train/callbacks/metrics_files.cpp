#include "train/callbacks/metrics_files.h"

#include <nlohmann/json.hpp>

#include "vlmtrain/io/json_text.h"

namespace vlmtrain::train {

MetricsFiles::MetricsFiles(const std::filesystem::path& run_folder, int64_t resumed_step, bool log_samples)
    : metrics_(run_folder / "metrics.jsonl", resumed_step),
      events_(run_folder / "events.jsonl", resumed_step),
      predictions_(run_folder / "predictions.jsonl", resumed_step) {
  if (log_samples) samples_.emplace(run_folder / "samples.jsonl", resumed_step);
}

void MetricsFiles::on_step(const StepReport& step) {
  metrics_.append(step.metrics.to_json_line());
  if (samples_) {
    samples_->append(io::to_json_string(nlohmann::ordered_json{{"step", step.metrics.step}, {"ids", step.sample_ids}}));
  }
}

void MetricsFiles::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  metrics_.amend(step, "evaluation", evaluation.to_json());
}

void MetricsFiles::on_event(const report::Event& event) {
  events_.append(event.to_json_line());
}

void MetricsFiles::on_prediction(const report::Prediction& prediction) {
  predictions_.append(prediction.to_json_line());
}

}  // namespace vlmtrain::train

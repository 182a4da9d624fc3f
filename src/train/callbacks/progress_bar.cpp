#include "train/callbacks/progress_bar.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

void ProgressBar::on_past_step(const nlohmann::json& line) {
  const auto evaluation = line.find("evaluation");
  if (evaluation == line.end() || !evaluation->is_object()) return;
  const auto get_number = [](const nlohmann::json& object, const char* key) -> std::optional<double> {
    const auto value = object.find(key);
    return value != object.end() && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
  };
  const auto is_best = evaluation->find("is_best"), masks = evaluation->find("masks");
  const auto loss = get_number(*evaluation, "loss");
  if (is_best == evaluation->end() || *is_best != true || !loss) return;
  best_ = {
      .step = line.value("step", int64_t{0}), .loss = *loss, .exact_match = get_number(*evaluation, "exact_match")};
  if (masks != evaluation->end() && masks->is_object()) best_->dice = get_number(*masks, "dice");
}

void ProgressBar::on_step(const StepReport& step) {
  if (step.metrics.evaluation) log_evaluation(step.metrics);
  progress_.show(step.metrics);
}

void ProgressBar::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.evaluation = evaluation;
  log_evaluation(metrics);
}

bool ProgressBar::is_at_least_as_good(const report::EvaluationBaseline& current,
                                      const report::EvaluationBaseline& best) const {
  switch (metric_) {
    case report::BestMetric::kExactMatch:
      return current.exact_match >= best.exact_match;
    case report::BestMetric::kDice:
      return current.dice >= best.dice;
    case report::BestMetric::kLoss:
      break;
  }
  return current.loss <= best.loss;
}

void ProgressBar::log_evaluation(const report::StepMetrics& metrics) {
  const auto current = report::make_evaluation_baseline(metrics.step, metrics.evaluation->total);
  // Of another data set or metric.
  if (metrics.evaluation->is_best && best_ && !is_at_least_as_good(current, *best_)) best_.reset();
  progress_.clear();
  spdlog::info("{}", report::format_evaluation_line(metrics, best_, metric_));
  if (metrics.evaluation->is_best) best_ = current;
}

void ProgressBar::on_event(const report::Event& event) {
  progress_.clear();
  switch (event.kind) {
    case report::EventKind::kCheckpoint:
      break;  // seen by the folder, too often for the log
    case report::EventKind::kFailed:
      break;  // the command's last line says it
    case report::EventKind::kResumed:
    case report::EventKind::kChanged:
    case report::EventKind::kForecastSplit:
    case report::EventKind::kCacheEmptied:
    case report::EventKind::kFewerPredictions:
      spdlog::info("{}", event.message);
      break;
    default:
      spdlog::warn("{}", event.message);
  }
}

}  // namespace vlmtrain::train

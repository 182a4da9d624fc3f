#include "train/callbacks/progress_bar.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

void ProgressBar::on_past_step(const nlohmann::json& line) {
  const auto evaluation = line.find("evaluation");
  if (evaluation == line.end() || !evaluation->is_object()) return;
  const auto is_best = evaluation->find("is_best"), loss = evaluation->find("loss"),
             exact_match = evaluation->find("exact_match");
  const auto is_number = [&](auto value) { return value != evaluation->end() && value->is_number(); };
  if (is_best == evaluation->end() || *is_best != true || !is_number(loss)) return;
  best_ = {.step = line.value("step", int64_t{0}), .loss = *loss};
  if (is_number(exact_match)) best_->exact_match = *exact_match;
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

void ProgressBar::log_evaluation(const report::StepMetrics& metrics) {
  const auto& score = metrics.evaluation->total;
  if (metrics.evaluation->is_best && best_) {
    const bool is_better =
        best_by_ == report::BestBy::kLoss ? score.loss <= best_->loss : score.exact_match >= best_->exact_match;
    if (!is_better) best_.reset();  // of another data set or metric
  }
  progress_.clear();
  spdlog::info("{}", report::evaluation_line(metrics, best_, best_by_));
  if (metrics.evaluation->is_best) best_ = {.step = metrics.step, .loss = score.loss, .exact_match = score.exact_match};
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
    case report::EventKind::kForeseenSplit:
    case report::EventKind::kCacheEmptied:
    case report::EventKind::kFewerAnswers:
      spdlog::info("{}", event.message);
      break;
    default:
      spdlog::warn("{}", event.message);
  }
}

}  // namespace vlmtrain::train

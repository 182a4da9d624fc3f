#include "train/run/callbacks.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::train {

template <class Call>
void CallbackList::call_all_callbacks(const Call& call) {
  const ScopedStopwatch stopwatch(callback_seconds_);
  for (const auto& callback : callbacks_) call(*callback);
}

void CallbackList::on_logged_step(const nlohmann::json& line) {
  call_all_callbacks([&](TrainerCallback& callback) { callback.on_logged_step(line); });
}

void CallbackList::on_step(const StepReport& step) {
  call_all_callbacks([&](TrainerCallback& callback) { callback.on_step(step); });
}

void CallbackList::on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  call_all_callbacks([&](TrainerCallback& callback) { callback.on_deferred_evaluation(step, evaluation); });
}

void CallbackList::on_event(const report::RunEvent& event) {
  call_all_callbacks([&](TrainerCallback& callback) { callback.on_event(event); });
}

void CallbackList::on_prediction(const report::Prediction& prediction) {
  call_all_callbacks([&](TrainerCallback& callback) { callback.on_prediction(prediction); });
}

void CallbackList::on_end(bool succeeded) {
  call_all_callbacks([succeeded](TrainerCallback& callback) { callback.on_end(succeeded); });
}

MetricsFileCallback::MetricsFileCallback(const std::filesystem::path& run_folder, int64_t resumed_step,
                                         bool log_samples)
    : metrics_log_(run_folder / "metrics.jsonl", resumed_step),
      event_log_(run_folder / "events.jsonl", resumed_step),
      prediction_log_(run_folder / "predictions.jsonl", resumed_step) {
  if (log_samples) sample_log_.emplace(run_folder / "samples.jsonl", resumed_step);
}

void MetricsFileCallback::on_step(const StepReport& step) {
  metrics_log_.append(step.metrics.to_json_line());
  if (sample_log_) {
    sample_log_->append(
        io::to_json_string(nlohmann::ordered_json{{"step", step.metrics.step}, {"ids", step.sample_ids}}));
  }
}

void MetricsFileCallback::on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  metrics_log_.set_line_field(step, "evaluation", evaluation.to_json());
}

void MetricsFileCallback::on_event(const report::RunEvent& event) {
  event_log_.append(event.to_json_line());
}

void MetricsFileCallback::on_prediction(const report::Prediction& prediction) {
  prediction_log_.append(prediction.to_json_line());
}

namespace {

/// Removes all lines of an existing file.
constexpr int64_t kBeforeFirstStep = -1;

}  // namespace

EpochsFileCallback::EpochsFileCallback(const std::filesystem::path& run_folder) : run_folder_(run_folder) {
  clear_epochs_file();
}

/// Replaces any existing file.
void EpochsFileCallback::clear_epochs_file() {
  const auto path = run_folder_ / "epochs.jsonl";
  io::write_file(path, "");
  epoch_log_.emplace(path, kBeforeFirstStep);
}

void EpochsFileCallback::on_logged_step(const nlohmann::json& line) {
  for (const auto& row : epoch_summaries_.add(line)) epoch_log_->append(io::to_json_string(row));
}

void EpochsFileCallback::on_step(const StepReport& step) {
  // Formats and parses the line of metrics.jsonl, so that a resumed run, which reads that line,
  // rebuilds exactly the same row.
  on_logged_step(nlohmann::json::parse(step.metrics.to_json_line()));
}

void EpochsFileCallback::on_deferred_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {
  epoch_summaries_ = {};
  clear_epochs_file();
  report::read_json_lines(run_folder_ / "metrics.jsonl", [this](const auto& line) { on_logged_step(line); });
}

void EpochsFileCallback::on_end(bool /*succeeded*/) {
  if (const auto row = epoch_summaries_.make_current_epoch_row()) epoch_log_->append(io::to_json_string(*row));
}

namespace {

/// Shortest time between two writes of report.html. Not tuned.
constexpr std::chrono::seconds kMinReportInterval{10};
/// Ratio of that time to the duration of a write: writing takes at most 0.5 % of the time.
constexpr int kReportIntervalPerWriteTime = 200;

}  // namespace

void HtmlReportCallback::on_step(const StepReport& /*step*/) {
  if (Clock::now() >= next_write_time_) write();
}

void HtmlReportCallback::on_end(bool /*succeeded*/) {
  write();
}

/// Writes the report and schedules the next write. Logs an error only once until a write succeeds.
void HtmlReportCallback::write() {
  const auto start = Clock::now();
  try {
    run_report_.write();
    has_write_failed_ = false;
  } catch (const UserError& error) {
    if (!has_write_failed_) spdlog::warn("report.html is not up to date: {}", error.what());
    has_write_failed_ = true;
  }
  const auto end = Clock::now();
  next_write_time_ = end + std::max<Clock::duration>(kMinReportInterval, kReportIntervalPerWriteTime * (end - start));
}

void ProgressBarCallback::on_logged_step(const nlohmann::json& line) {
  const auto evaluation = line.find("evaluation");
  if (evaluation == line.end() || !evaluation->is_object()) return;
  const auto get_number = [](const nlohmann::json& object, const char* key) -> std::optional<double> {
    const auto value = object.find(key);
    return value != object.end() && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
  };
  const auto is_best = evaluation->find("is_best"), masks = evaluation->find("masks");
  const auto loss = get_number(*evaluation, "loss");
  if (is_best == evaluation->end() || *is_best != true || !loss) return;
  best_evaluation_ = {
      .step = line.value("step", int64_t{0}), .loss = *loss, .exact_match = get_number(*evaluation, "exact_match")};
  if (masks != evaluation->end() && masks->is_object()) best_evaluation_->dice = get_number(*masks, "dice");
  if (const auto metrics = evaluation->find("metrics"); metrics != evaluation->end() && metrics->is_object()) {
    for (const auto& [name, value] : metrics->items())
      best_evaluation_->metrics[name] = get_number(*metrics, name.c_str());
  }
}

void ProgressBarCallback::on_step(const StepReport& step) {
  if (step.metrics.evaluation) log_evaluation(step.metrics);
  progress_.show(step.metrics);
}

void ProgressBarCallback::on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.evaluation = evaluation;
  log_evaluation(metrics);
}

bool ProgressBarCallback::is_at_least_as_good(const report::EvaluationBaseline& current,
                                              const report::EvaluationBaseline& best) const {
  const auto value = best_metric_.find_value(current), best_value = best_metric_.find_value(best);
  if (!value || !best_value) return !best_value;
  return best_metric_.is_lower_better ? *value <= *best_value : *value >= *best_value;
}

void ProgressBarCallback::log_evaluation(const report::StepMetrics& metrics) {
  const auto current = report::make_evaluation_baseline(metrics.step, metrics.evaluation->total);
  // The best result was of another data set or metric if a worse one is the best now.
  if (metrics.evaluation->is_best && best_evaluation_ && !is_at_least_as_good(current, *best_evaluation_))
    best_evaluation_.reset();
  progress_.clear();
  spdlog::info("{}", report::format_evaluation_line(metrics, best_evaluation_, best_metric_));
  if (metrics.evaluation->is_best) best_evaluation_ = current;
}

void ProgressBarCallback::on_event(const report::RunEvent& event) {
  progress_.clear();
  switch (event.kind) {
    case report::EventKind::kCheckpoint:  // too frequent for the log; the folder shows it
    case report::EventKind::kFailed:      // the command prints the error as its last line
      break;
    case report::EventKind::kResumed:
    case report::EventKind::kSettingsChanged:
    case report::EventKind::kLookAheadSplit:
    case report::EventKind::kCacheEmptied:
    case report::EventKind::kFewerPredictions:
      spdlog::info("{}", event.message);
      break;
    default:
      spdlog::warn("{}", event.message);
  }
}

void add_run_callbacks(CallbackList& callbacks, const Config& config, const RunProgress& run, bool quiet) {
  const OutputOptions& output = config.output;
  callbacks.add(std::make_unique<MetricsFileCallback>(run.folder, run.step, output.log_samples));
  callbacks.add(std::make_unique<EpochsFileCallback>(run.folder));
  callbacks.add(
      std::make_unique<ProgressBarCallback>(run.total_steps, quiet, make_report_metric(config.evaluation.best_metric)));
  if (output.write_tensorboard && !is_dry_run()) {
    callbacks.add(std::make_unique<TensorBoardCallback>(run.folder, run.step));
  }
  if (output.write_report) callbacks.add(std::make_unique<HtmlReportCallback>(run.folder));
}

}  // namespace vlmtrain::train

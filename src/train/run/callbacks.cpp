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

namespace {

/// Adds the time between its construction and destruction to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

template <class Call>
void CallbackList::call_all_callbacks(const Call& call) {
  const Stopwatch stopwatch(seconds_);
  for (const auto& callback : callbacks_) call(*callback);
}

void CallbackList::on_past_step(const nlohmann::json& line) {
  call_all_callbacks([&](Callback& callback) { callback.on_past_step(line); });
}

void CallbackList::on_step(const StepReport& step) {
  call_all_callbacks([&](Callback& callback) { callback.on_step(step); });
}

void CallbackList::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  call_all_callbacks([&](Callback& callback) { callback.on_late_evaluation(step, evaluation); });
}

void CallbackList::on_event(const report::Event& event) {
  call_all_callbacks([&](Callback& callback) { callback.on_event(event); });
}

void CallbackList::on_prediction(const report::Prediction& prediction) {
  call_all_callbacks([&](Callback& callback) { callback.on_prediction(prediction); });
}

void CallbackList::on_end(bool succeeded) {
  call_all_callbacks([succeeded](Callback& callback) { callback.on_end(succeeded); });
}

MetricsFileCallback::MetricsFileCallback(const std::filesystem::path& run_folder, int64_t resumed_step,
                                         bool log_samples)
    : metrics_(run_folder / "metrics.jsonl", resumed_step),
      events_(run_folder / "events.jsonl", resumed_step),
      predictions_(run_folder / "predictions.jsonl", resumed_step) {
  if (log_samples) samples_.emplace(run_folder / "samples.jsonl", resumed_step);
}

void MetricsFileCallback::on_step(const StepReport& step) {
  metrics_.append(step.metrics.to_json_line());
  if (samples_) {
    samples_->append(io::to_json_string(nlohmann::ordered_json{{"step", step.metrics.step}, {"ids", step.sample_ids}}));
  }
}

void MetricsFileCallback::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  metrics_.amend_line(step, "evaluation", evaluation.to_json());
}

void MetricsFileCallback::on_event(const report::Event& event) {
  events_.append(event.to_json_line());
}

void MetricsFileCallback::on_prediction(const report::Prediction& prediction) {
  predictions_.append(prediction.to_json_line());
}

namespace {

/// Removes all lines of an existing file.
constexpr int64_t kNoStep = -1;

}  // namespace

EpochsFileCallback::EpochsFileCallback(const std::filesystem::path& run_folder) : run_folder_(run_folder) {
  truncate_file();
}

/// Replaces any existing file.
void EpochsFileCallback::truncate_file() {
  const auto path = run_folder_ / "epochs.jsonl";
  io::write_file(path, "");
  rows_.emplace(path, kNoStep);
}

void EpochsFileCallback::on_past_step(const nlohmann::json& line) {
  for (const auto& row : epochs_.add(line)) rows_->append(io::to_json_string(row));
}

void EpochsFileCallback::on_step(const StepReport& step) {
  // Formats and parses the line of metrics.jsonl, so that a resumed run, which reads that line,
  // rebuilds exactly the same row.
  on_past_step(nlohmann::json::parse(step.metrics.to_json_line()));
}

void EpochsFileCallback::on_late_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {
  epochs_ = {};
  truncate_file();
  report::read_json_lines(run_folder_ / "metrics.jsonl", [this](const auto& line) { on_past_step(line); });
}

void EpochsFileCallback::on_end(bool /*succeeded*/) {
  if (const auto row = epochs_.make_current_epoch_row()) rows_->append(io::to_json_string(*row));
}

namespace {

/// Shortest time between two writes of report.html. Not tuned.
constexpr std::chrono::seconds kReportInterval{10};
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
    report_.write();
    has_failed_ = false;
  } catch (const UserError& error) {
    if (!has_failed_) spdlog::warn("report.html is not up to date: {}", error.what());
    has_failed_ = true;
  }
  const auto end = Clock::now();
  next_write_time_ = end + std::max<Clock::duration>(kReportInterval, kReportIntervalPerWriteTime * (end - start));
}

void ProgressBarCallback::on_past_step(const nlohmann::json& line) {
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

void ProgressBarCallback::on_step(const StepReport& step) {
  if (step.metrics.evaluation) log_evaluation(step.metrics);
  progress_.show(step.metrics);
}

void ProgressBarCallback::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.evaluation = evaluation;
  log_evaluation(metrics);
}

bool ProgressBarCallback::is_at_least_as_good(const report::EvaluationBaseline& current,
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

void ProgressBarCallback::log_evaluation(const report::StepMetrics& metrics) {
  const auto current = report::make_evaluation_baseline(metrics.step, metrics.evaluation->total);
  // The best result was of another data set or metric if a worse one is the best now.
  if (metrics.evaluation->is_best && best_ && !is_at_least_as_good(current, *best_)) best_.reset();
  progress_.clear();
  spdlog::info("{}", report::format_evaluation_line(metrics, best_, metric_));
  if (metrics.evaluation->is_best) best_ = current;
}

void ProgressBarCallback::on_event(const report::Event& event) {
  progress_.clear();
  switch (event.kind) {
    case report::EventKind::kCheckpoint:
      break;  // too frequent for the log; the folder shows it
    case report::EventKind::kFailed:
      break;  // the command prints the error as its last line
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

namespace {

report::BestMetric to_report_metric(BestMetric metric) {
  switch (metric) {
    case BestMetric::kExactMatch:
      return report::BestMetric::kExactMatch;
    case BestMetric::kDice:
      return report::BestMetric::kDice;
    case BestMetric::kLoss:
      break;
  }
  return report::BestMetric::kLoss;
}

}  // namespace

void add_run_callbacks(CallbackList& callbacks, const Config& config, const RunProgress& run, bool quiet) {
  const OutputOptions& output = config.output;
  callbacks.add(std::make_unique<MetricsFileCallback>(run.folder, run.step, output.log_samples));
  callbacks.add(std::make_unique<EpochsFileCallback>(run.folder));
  callbacks.add(
      std::make_unique<ProgressBarCallback>(run.total_steps, quiet, to_report_metric(config.evaluation.best_metric)));
  if (output.write_tensorboard && !is_dry_run()) {
    callbacks.add(std::make_unique<TensorBoardCallback>(run.folder, run.step));
  }
  if (output.write_report) callbacks.add(std::make_unique<HtmlReportCallback>(run.folder));
}

}  // namespace vlmtrain::train

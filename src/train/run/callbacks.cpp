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
void CallbackList::call_all(const Call& call) {
  const Stopwatch stopwatch(seconds_);
  for (const auto& callback : callbacks_) call(*callback);
}

void CallbackList::on_past_step(const nlohmann::json& line) {
  call_all([&](Callback& callback) { callback.on_past_step(line); });
}

void CallbackList::on_step(const StepReport& step) {
  call_all([&](Callback& callback) { callback.on_step(step); });
}

void CallbackList::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  call_all([&](Callback& callback) { callback.on_late_evaluation(step, evaluation); });
}

void CallbackList::on_event(const report::Event& event) {
  call_all([&](Callback& callback) { callback.on_event(event); });
}

void CallbackList::on_prediction(const report::Prediction& prediction) {
  call_all([&](Callback& callback) { callback.on_prediction(prediction); });
}

void CallbackList::on_end(bool succeeded) {
  call_all([succeeded](Callback& callback) { callback.on_end(succeeded); });
}

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

namespace {

/// Removes all lines of an existing file.
constexpr int64_t kNoStep = -1;

}  // namespace

EpochsFile::EpochsFile(const std::filesystem::path& run_folder) : run_folder_(run_folder) {
  restart();
}

/// Replaces any existing file.
void EpochsFile::restart() {
  const auto path = run_folder_ / "epochs.jsonl";
  io::write_file(path, "");
  rows_.emplace(path, kNoStep);
}

void EpochsFile::on_past_step(const nlohmann::json& line) {
  for (const auto& row : epochs_.add(line)) rows_->append(io::to_json_string(row));
}

void EpochsFile::on_step(const StepReport& step) {
  // Formats and parses the line of metrics.jsonl, so that a resumed run, which reads that line,
  // rebuilds exactly the same row.
  on_past_step(nlohmann::json::parse(step.metrics.to_json_line()));
}

void EpochsFile::on_late_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {
  epochs_ = {};
  restart();
  report::read_json_lines(run_folder_ / "metrics.jsonl", [this](const auto& line) { on_past_step(line); });
}

void EpochsFile::on_end(bool /*succeeded*/) {
  if (const auto row = epochs_.current_epoch()) rows_->append(io::to_json_string(*row));
}

namespace {

/// Shortest time between two writes of report.html. Not tuned.
constexpr std::chrono::seconds kReportInterval{10};
/// Ratio of that time to the duration of a write: writing takes at most 0.5 % of the time.
constexpr int kReportIntervalPerWriteTime = 200;

}  // namespace

void HtmlReport::on_step(const StepReport& /*step*/) {
  if (Clock::now() >= next_write_) write();
}

void HtmlReport::on_end(bool /*succeeded*/) {
  write();
}

/// Writes the report and schedules the next write. Logs an error only once until a write succeeds.
void HtmlReport::write() {
  const auto start = Clock::now();
  try {
    report_.write();
    has_failed_ = false;
  } catch (const UserError& error) {
    if (!has_failed_) spdlog::warn("report.html is not up to date: {}", error.what());
    has_failed_ = true;
  }
  const auto end = Clock::now();
  next_write_ = end + std::max<Clock::duration>(kReportInterval, kReportIntervalPerWriteTime * (end - start));
}

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
  // The best result was of another data set or metric if a worse one is the best now.
  if (metrics.evaluation->is_best && best_ && !is_at_least_as_good(current, *best_)) best_.reset();
  progress_.clear();
  spdlog::info("{}", report::format_evaluation_line(metrics, best_, metric_));
  if (metrics.evaluation->is_best) best_ = current;
}

void ProgressBar::on_event(const report::Event& event) {
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
  callbacks.add(std::make_unique<MetricsFiles>(run.folder, run.step, output.log_samples));
  callbacks.add(std::make_unique<EpochsFile>(run.folder));
  callbacks.add(std::make_unique<ProgressBar>(run.total_steps, quiet, to_report_metric(config.evaluation.best_metric)));
  if (output.tensorboard && !is_dry_run()) {
    callbacks.add(std::make_unique<TensorBoardEvents>(run.folder, run.step));
  }
  if (output.report) callbacks.add(std::make_unique<HtmlReport>(run.folder));
}

}  // namespace vlmtrain::train

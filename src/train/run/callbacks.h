#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/report/event.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/prediction.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/report/run_epochs.h"
#include "vlmtrain/report/run_report.h"
#include "vlmtrain/report/tensorboard.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// A step whose numbers have reached the host.
struct StepReport {
  report::StepMetrics metrics;
  std::vector<std::string> sample_ids;  ///< of the global batch, in order
};

/// What looks on while a run goes. Nothing here changes a number, runs the model or raises an event. Calls come from
/// the run's thread, between steps.
class Callback {
 public:
  virtual ~Callback() = default;

  /// A step that an earlier process did and that stays, as metrics.jsonl has it; in their order, before all else.
  virtual void on_past_step(const nlohmann::json& /*line*/) {}
  /// In the order of steps; on a GPU the next one is under way by then.
  virtual void on_step(const StepReport& /*step*/) {}
  /// An evaluation after a step that is reported already: a stop had interrupted it, and the run that goes on made it
  /// up.
  virtual void on_late_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {}
  virtual void on_event(const report::Event& /*event*/) {}
  /// An answer of the model as it is at a checkpoint.
  virtual void on_prediction(const report::Prediction& /*prediction*/) {}
  /// The run ends, with all its files written. `succeeded`: by its last step or a request to stop; else by an error.
  virtual void on_end(bool /*well*/) {}
};

/// All callbacks of a run, in the order in which they were added, and the time that they take.
class CallbackList {
 public:
  void add(std::unique_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  void on_past_step(const nlohmann::json& line);
  void on_step(const StepReport& on_step);
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation);
  void on_event(const report::Event& on_event);
  void on_prediction(const report::Prediction& on_prediction);
  void on_end(bool succeeded);

  /// Spent in callbacks so far.
  double seconds() const { return seconds_; }

 private:
  template <class Call>
  void for_each(const Call& call);

  std::vector<std::unique_ptr<Callback>> callbacks_;
  double seconds_ = 0;
};

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

/// report.html, written anew every ten seconds or more rarely: at most one part in two hundred of the time.
class HtmlReport final : public Callback {
 public:
  explicit HtmlReport(const std::filesystem::path& run_folder) : report_(run_folder) {}

  void on_step(const StepReport& step) override;
  void on_end(bool succeeded) override;

 private:
  using Clock = std::chrono::steady_clock;

  void write();

  report::RunReport report_;
  Clock::time_point next_write_ = Clock::now();
  bool failed_ = false;
};

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

/// Where a run begins or goes on.
struct RunProgress {
  std::filesystem::path folder;
  int64_t step = 0;  ///< steps done
  int64_t total_steps = 0;
};

/// Adds what output.* of `config` asks for; the first rank of a run calls it.
void add_run_callbacks(CallbackList& callbacks, const Config& config, const RunProgress& run, bool quiet);

}  // namespace vlmtrain::train

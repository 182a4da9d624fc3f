#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {

/// An estimator of a run's remaining time from its last steps, so that a long step, such as the
/// first, soon has no effect.
class RemainingTimeEstimator {
 public:
  /// Records the end of a step. The time between two calls may include checkpoints and evaluations.
  void record_step(std::chrono::steady_clock::time_point now);
  /// Returns the estimated seconds of `num_remaining_steps` steps; nullopt before the second step.
  std::optional<double> estimate_remaining_seconds(int64_t num_remaining_steps) const;

 private:
  std::deque<std::chrono::steady_clock::time_point> step_end_times_;  // of the last steps
};

/// Returns one line about a step: "step 12/100  loss 1.2345  lr 1.00e-04  …". `num_oom_splits` is
/// the number in the run so far. If the line exceeds `columns`, its less important parts are
/// omitted; the remaining time and incidents (OOM splits, skipped steps) are omitted last.
std::string format_progress_line(const StepMetrics& metrics, int64_t total_steps,
                                 std::optional<double> remaining_seconds, int64_t num_oom_splits, size_t columns);

/// A previous evaluation, for comparison.
struct EvaluationBaseline {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> exact_match{};
  std::optional<double> dice{};
  AnswerMetrics metrics{};  ///< those of eval.metrics
};

/// Returns the baseline for comparing later evaluations with this one.
EvaluationBaseline make_evaluation_baseline(int64_t step, const EvaluationScore& score);

/// The metric by which evaluations are compared.
struct BestMetric {
  std::string name = "loss";  ///< "loss", "exact_match", "dice", or a name of AnswerMetrics
  bool is_lower_better = true;

  /// Returns the value in an evaluation; nullopt without one.
  std::optional<double> find_value(const EvaluationBaseline& evaluation) const;
};

/// Returns "step 200: validation loss 1.234 (best so far, before 1.301 at step 100), exact match
/// 41.2 %, Dice 0.873, 12 s". `best` is the best earlier evaluation; the comparison with it follows
/// the score of `metric`. REQUIRES: the step has an evaluation.
std::string format_evaluation_line(const StepMetrics& metrics, const std::optional<EvaluationBaseline>& best = {},
                                   const BestMetric& metric = {});

/// The progress of a run on stderr: a bar that is redrawn in place on a terminal; otherwise one
/// plain line at most every five seconds. Shows nothing if `quiet`. Not thread-safe.
class ProgressBar {
 public:
  /// `total_steps` is the number of steps of the run, `quiet` suppresses all output.
  ProgressBar(int64_t total_steps, bool quiet);
  /// Ends the line of the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Shows the progress after a step. REQUIRES: called once for each step.
  void show(const StepMetrics& metrics);
  /// Clears the bar before other output. The next show() draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t total_steps_;
  bool is_quiet_;
  bool is_terminal_;
  bool is_bar_visible_ = false;
  int64_t num_oom_splits_ = 0;
  RemainingTimeEstimator remaining_time_estimator_;
  Clock::time_point last_show_time_{};
};

/// The progress of a count on stderr: a line that is redrawn in place on a terminal; otherwise one
/// plain line every five seconds. Shows nothing in the first half second, or if `quiet`. Not
/// thread-safe.
class CountProgressBar {
 public:
  /// `label` is the beginning of the line: "checking the data".
  CountProgressBar(std::string label, int64_t total, bool quiet);
  /// Clears the line.
  ~CountProgressBar();
  CountProgressBar(const CountProgressBar&) = delete;
  CountProgressBar& operator=(const CountProgressBar&) = delete;

  /// Shows "label: count of total samples", if the last line is old enough.
  void show(int64_t count);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  int64_t total_count_;
  bool is_quiet_;
  bool is_terminal_;
  bool is_bar_visible_ = false;
  Clock::time_point next_update_time_;
};

}  // namespace vlmtrain::report

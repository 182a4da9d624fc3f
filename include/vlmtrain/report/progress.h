#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {

/// How long the rest of a run will take, from its last steps: a long step, such as the first, is soon forgotten.
class RemainingTimeEstimator {
 public:
  /// The time between two calls is a step's, saving and evaluating included.
  void record_step(std::chrono::steady_clock::time_point now);
  /// Seconds for so many further steps; nothing before the second step.
  std::optional<double> estimate_seconds(int64_t num_remaining_steps) const;

 private:
  std::deque<std::chrono::steady_clock::time_point> times_;  // of the last steps
};

/// One line about a step: "step 12/100  loss 1.2345  lr 1.00e-04  …". What matters less is left out where the line
/// would be longer than `columns`; `remaining_seconds` and incidents go last.
std::string format_progress_line(const StepMetrics& metrics, int64_t total_steps,
                                 std::optional<double> remaining_seconds, int64_t oom_splits, size_t columns);

/// An evaluation to compare with.
struct EvaluationBaseline {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> exact_match{};
  std::optional<double> dice{};
};

/// As it is worth to compare later ones with.
EvaluationBaseline make_evaluation_baseline(int64_t step, const EvaluationScore& score);

/// By what evaluations are compared.
enum class BestMetric : uint8_t { kLoss, kExactMatch, kDice };

/// "step 200: validation loss 1.234 (best so far, before 1.301 at step 100), exact match 41.2 %, Dice 0.873, 12 s";
/// `best` is that of the evaluations before. REQUIRES: the step has an evaluation.
std::string format_evaluation_line(const StepMetrics& metrics, const std::optional<EvaluationBaseline>& best = {},
                                   BestMetric metric = BestMetric::kLoss);

/// Shows on stderr how a run gets on: a bar that is redrawn in place on a terminal, else a plain line now and then.
class Progress {
 public:
  Progress(int64_t total_steps, bool quiet);
  /// Ends the bar's line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const StepMetrics& metrics);
  /// Clears the bar before something else is printed; the next show draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t total_steps_;
  bool quiet_;
  bool is_terminal_;
  bool is_drawn_ = false;
  int64_t oom_splits_ = 0;
  RemainingTimeEstimator remaining_time_;
  Clock::time_point last_shown_{};
};

/// Shows on stderr how far something is that counts: a line that is redrawn in place on a terminal, else a plain one
/// every five seconds. What is done within half a second shows nothing.
class CountProgress {
 public:
  /// `label` begins the line: "checking the data".
  CountProgress(std::string label, int64_t total, bool quiet);
  /// Clears the line.
  ~CountProgress();
  CountProgress(const CountProgress&) = delete;
  CountProgress& operator=(const CountProgress&) = delete;

  void show(int64_t count);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  int64_t total_;
  bool quiet_;
  bool is_terminal_;
  bool is_drawn_ = false;
  Clock::time_point next_;
};

}  // namespace vlmtrain::report

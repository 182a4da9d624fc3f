#pragma once

#include <chrono>
#include <cstdint>

#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {

/// Shows on stderr how a run gets on: a bar that is redrawn in place on a terminal, else a plain line now and then.
class Progress {
 public:
  /// `done_steps` were done by an interrupted run before.
  Progress(int64_t total_steps, int64_t done_steps, bool quiet);
  /// Ends the bar's line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const StepMetrics& metrics);
  /// Clears the bar before something else is printed; the next show draws it again.
  void clear();

 private:
  std::string line(const StepMetrics& metrics, double seconds_left) const;

  using Clock = std::chrono::steady_clock;
  int64_t total_steps_;
  int64_t done_steps_;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_shown_{};
};

}  // namespace vlmtrain::report

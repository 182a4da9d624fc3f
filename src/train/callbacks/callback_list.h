#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "train/callbacks/callback.h"

namespace vlmtrain::train {

/// All callbacks of a run, in the order in which they were added, and the time that they take.
class CallbackList {
 public:
  void add(std::unique_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  /// `metrics`: metrics.jsonl, as it stays.
  void past_steps(const std::filesystem::path& metrics);
  void resume(int64_t step);
  void before_step(int64_t step);
  void step(const StepReport& step);
  void late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation);
  void event(const report::Event& event);
  void checkpoint(int64_t step, const std::filesystem::path& folder);
  void prediction(const report::Prediction& prediction);
  void end(bool well);

  /// Spent in callbacks so far.
  double seconds() const { return seconds_; }

 private:
  template <class Call>
  void each(const Call& call);

  std::vector<std::unique_ptr<Callback>> callbacks_;
  double seconds_ = 0;
  int depth_ = 0;  // a callback may raise an event
};

}  // namespace vlmtrain::train

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

}  // namespace vlmtrain::train

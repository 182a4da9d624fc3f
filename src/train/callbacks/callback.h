#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/report/event.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/prediction.h"

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

}  // namespace vlmtrain::train

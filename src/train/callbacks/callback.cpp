#include "train/callbacks/callback.h"

#include <chrono>

namespace vlmtrain::train {

namespace {

/// Adds the time that it lives to `seconds`.
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
void CallbackList::for_each(const Call& call) {
  const Stopwatch stopwatch(seconds_);
  for (const auto& callback : callbacks_) call(*callback);
}

void CallbackList::on_past_step(const nlohmann::json& line) {
  for_each([&](Callback& callback) { callback.on_past_step(line); });
}

void CallbackList::on_step(const StepReport& step) {
  for_each([&](Callback& callback) { callback.on_step(step); });
}

void CallbackList::on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  for_each([&](Callback& callback) { callback.on_late_evaluation(step, evaluation); });
}

void CallbackList::on_event(const report::Event& event) {
  for_each([&](Callback& callback) { callback.on_event(event); });
}

void CallbackList::on_prediction(const report::Prediction& prediction) {
  for_each([&](Callback& callback) { callback.on_prediction(prediction); });
}

void CallbackList::on_end(bool succeeded) {
  for_each([succeeded](Callback& callback) { callback.on_end(succeeded); });
}

}  // namespace vlmtrain::train

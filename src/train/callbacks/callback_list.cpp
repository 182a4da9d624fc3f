#include "train/callbacks/callback_list.h"

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
void CallbackList::each(const Call& call) {
  const Stopwatch stopwatch(seconds_);
  for (const auto& callback : callbacks_) call(*callback);
}

void CallbackList::past_step(const nlohmann::json& line) {
  each([&](Callback& callback) { callback.on_past_step(line); });
}

void CallbackList::step(const StepReport& step) {
  each([&](Callback& callback) { callback.on_step(step); });
}

void CallbackList::late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) {
  each([&](Callback& callback) { callback.on_late_evaluation(step, evaluation); });
}

void CallbackList::event(const report::Event& event) {
  each([&](Callback& callback) { callback.on_event(event); });
}

void CallbackList::prediction(const report::Prediction& prediction) {
  each([&](Callback& callback) { callback.on_prediction(prediction); });
}

void CallbackList::end(bool well) {
  each([well](Callback& callback) { callback.on_end(well); });
}

}  // namespace vlmtrain::train

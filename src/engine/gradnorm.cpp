#include "vlmtrain/engine/gradnorm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

/// A weight never turns its task off for good.
constexpr double kLeastWeight = 1e-3;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

GradNorm::GradNorm(int64_t tasks, GradNormSettings settings)
    : settings_(settings),
      state_{std::vector<double>(static_cast<size_t>(tasks), 1.0),
             std::vector<std::optional<double>>(static_cast<size_t>(tasks))} {}

void GradNorm::update(const std::vector<TaskResult>& results, const std::vector<double>& weights) {
  std::vector<size_t> present;
  for (size_t task = 0; task < results.size(); ++task) {
    if (results[task].counts.label_tokens == 0 || !(results[task].loss > 0)) continue;
    present.push_back(task);
    if (!state_.first_losses[task]) state_.first_losses[task] = results[task].loss;
  }
  if (present.size() < 2) return;
  const auto count = static_cast<double>(present.size());
  std::vector<double> lags, norms;
  for (const size_t task : present) {
    lags.push_back(results[task].loss / *state_.first_losses[task]);
    norms.push_back(results[task].gradient_norm);
  }
  const double mean_lag = sum(lags) / count;
  const double mean_norm = sum(norms) / count;
  const double before = sum(state_.weights);
  for (size_t i = 0; i < present.size(); ++i) {
    const size_t task = present[i];
    const double excess = norms[i] - mean_norm * std::pow(lags[i] / mean_lag, settings_.alpha);
    // G is proportional to the weight that it was measured with.
    const double slope = norms[i] / weights[task];
    const double sign = excess > 0 ? 1.0 : excess < 0 ? -1.0 : 0.0;
    state_.weights[task] = std::max(kLeastWeight, state_.weights[task] - settings_.learning_rate * sign * slope);
  }
  // Of those that took part only: the others keep theirs.
  double present_before = before;
  double present_after = 0;
  for (size_t task = 0, i = 0; task < results.size(); ++task) {
    if (i < present.size() && present[i] == task) {
      present_after += state_.weights[task];
      ++i;
    } else {
      present_before -= state_.weights[task];
    }
  }
  for (const size_t task : present) state_.weights[task] *= present_before / present_after;
}

void GradNorm::set_state(State state) {
  VLMTRAIN_CHECK(state.weights.size() == state_.weights.size() && state.first_losses.size() == state_.weights.size(),
                 "weights of {} tasks for {}", state.weights.size(), state_.weights.size());
  state_ = std::move(state);
}

}  // namespace vlmtrain::engine

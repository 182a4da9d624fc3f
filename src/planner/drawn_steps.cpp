#include "vlmtrain/planner/drawn_steps.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kSteps = 48;
constexpr int64_t kFewestSteps = 4;
constexpr int64_t kMostSamples = 4096;

}  // namespace

int64_t steps_to_draw(int64_t samples_of_step) {
  VLMTRAIN_CHECK(samples_of_step > 0, "a step of {} samples", samples_of_step);
  return std::clamp(kMostSamples / samples_of_step, kFewestSteps, kSteps);
}

std::vector<std::vector<data::SampleShape>> drawn_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  steps.reserve(workload.drawn.size());
  for (const auto& step : workload.drawn) {
    const auto each = std::max<int64_t>(1, std::ssize(step) / workload.world_size);
    steps.emplace_back(step.begin(), step.begin() + each);
  }
  return steps;
}

std::vector<std::vector<data::SampleShape>> worst_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  for (const auto& batch : workload.candidates) {
    auto& step = steps.emplace_back(batch.shapes);
    step.resize(static_cast<size_t>(workload.samples_per_rank()), batch.shapes.back());
  }
  return steps;
}

}  // namespace vlmtrain::planner

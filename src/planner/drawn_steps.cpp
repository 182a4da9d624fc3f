#include "vlmtrain/planner/drawn_steps.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kSteps = 48;
constexpr int64_t kFewestSteps = 4;
constexpr int64_t kMostSamples = 4096;

int64_t tokens_in(const std::vector<data::SampleShape>& samples) {
  int64_t tokens = 0;
  for (const auto& shape : samples) tokens += shape.tokens;
  return tokens;
}

}  // namespace

int64_t steps_to_draw(int64_t samples_of_step) {
  VLMTRAIN_CHECK(samples_of_step > 0, "a step of {} samples", samples_of_step);
  return std::clamp(kMostSamples / samples_of_step, kFewestSteps, kSteps);
}

std::vector<std::vector<data::SampleShape>> drawn_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  steps.reserve(workload.drawn.size());
  for (const auto& parts : workload.drawn) steps.push_back(*std::ranges::max_element(parts, {}, tokens_in));
  return steps;
}

int64_t DrawnPart::tokens() const {
  return tokens_in(samples);
}

std::vector<DrawnPart> largest_parts(const Workload& workload) {
  std::vector<DrawnPart> largest;
  for (int64_t step = 0; step < std::ssize(workload.drawn); ++step) {
    const auto& parts = workload.drawn[static_cast<size_t>(step)];
    largest.resize(std::max(largest.size(), parts.size()));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (tokens_in(parts[rank]) <= tokens_in(largest[rank].samples)) continue;
      largest[rank] = {.rank = static_cast<int64_t>(rank), .step = step, .samples = parts[rank]};
    }
  }
  std::erase_if(largest, [](const DrawnPart& part) { return part.samples.empty(); });
  return largest;
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

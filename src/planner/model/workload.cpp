#include "vlmtrain/planner/workload.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kMaxSampledSteps = 48;
constexpr int64_t kMinSampledSteps = 4;
constexpr int64_t kMaxSampledSamples = 4096;

int64_t count_tokens(const std::vector<data::SampleShape>& samples) {
  int64_t tokens = 0;
  for (const auto& shape : samples) tokens += shape.tokens;
  return tokens;
}

}  // namespace

int64_t num_steps_to_sample(int64_t samples_per_step) {
  VLMTRAIN_CHECK(samples_per_step > 0, "a step of {} samples", samples_per_step);
  return std::clamp(kMaxSampledSamples / samples_per_step, kMinSampledSteps, kMaxSampledSteps);
}

std::vector<std::vector<data::SampleShape>> find_heaviest_rank_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  steps.reserve(workload.sampled_steps.size());
  for (const auto& rank_steps : workload.sampled_steps)
    steps.push_back(*std::ranges::max_element(rank_steps, {}, count_tokens));
  return steps;
}

int64_t SampledRankStep::tokens() const {
  return count_tokens(samples);
}

std::vector<SampledRankStep> find_largest_rank_steps(const Workload& workload) {
  std::vector<SampledRankStep> largest;
  for (int64_t step = 0; step < std::ssize(workload.sampled_steps); ++step) {
    const auto& rank_steps = workload.sampled_steps[static_cast<size_t>(step)];
    largest.resize(std::max(largest.size(), rank_steps.size()));
    for (size_t rank = 0; rank < rank_steps.size(); ++rank) {
      if (count_tokens(rank_steps[rank]) <= count_tokens(largest[rank].samples)) continue;
      largest[rank] = {.rank = static_cast<int64_t>(rank), .step = step, .samples = rank_steps[rank]};
    }
  }
  std::erase_if(largest, [](const SampledRankStep& rank_step) { return rank_step.samples.empty(); });
  return largest;
}

std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  for (const auto& batch : workload.candidates) {
    auto& step = steps.emplace_back(batch.shapes);
    step.resize(static_cast<size_t>(workload.samples_per_rank()), batch.shapes.back());
  }
  return steps;
}

}  // namespace vlmtrain::planner

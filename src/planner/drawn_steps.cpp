#include "vlmtrain/planner/drawn_steps.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kSteps = 48;
constexpr int64_t kFewestSteps = 4;
constexpr int64_t kMostSamples = 4096;

}  // namespace

std::vector<data::SampleShape> draw_samples(const std::vector<MeasuredSample>& samples, int64_t global_batch_size,
                                            uint64_t seed) {
  VLMTRAIN_CHECK(!samples.empty() && global_batch_size > 0, "{} samples in batches of {}", samples.size(),
                 global_batch_size);
  const int64_t count = std::max(kFewestSteps * global_batch_size, std::min(kSteps * global_batch_size, kMostSamples));
  const auto order = permutation(std::ssize(samples), stream_seed(seed, "drawn steps"));
  std::vector<data::SampleShape> drawn;
  drawn.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = order[static_cast<size_t>(i % std::ssize(order))];
    drawn.push_back(samples[static_cast<size_t>(place)].shape);
  }
  return drawn;
}

std::vector<std::vector<data::SampleShape>> drawn_steps(const Workload& workload) {
  const int64_t each = workload.samples_per_rank();
  std::vector<std::vector<data::SampleShape>> steps;
  for (int64_t first = 0; first + each <= std::ssize(workload.drawn); first += each) {
    const auto begin = workload.drawn.begin() + first;
    steps.emplace_back(begin, begin + each);
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

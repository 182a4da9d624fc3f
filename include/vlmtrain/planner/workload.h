#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// How many steps of so many samples a plan looks at: some dozens, fewer where they are large.
int64_t num_steps_to_sample(int64_t samples_per_step);

/// Of each of the workload's drawn steps the part of the rank that has the most tokens in it: the others wait for it.
/// Empty without drawn steps.
std::vector<std::vector<data::SampleShape>> find_heaviest_rank_steps(const Workload& workload);

struct SampledRankStep {
  int64_t rank = 0;
  int64_t step = 0;  ///< place in Workload::drawn
  std::vector<data::SampleShape> samples{};

  int64_t tokens() const;
};

/// For each rank that has any samples its part of a drawn step with the most tokens.
std::vector<SampledRankStep> find_largest_rank_steps(const Workload& workload);

/// Of each of the workload's worst batches the step of one rank, the last sample standing for those that it lacks.
std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload);

}  // namespace vlmtrain::planner

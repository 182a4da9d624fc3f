#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/worst_case.h"

namespace vlmtrain::planner {

/// Samples of a data set in a random order, which follows from `seed`: as many as make a few dozen steps of the global
/// batch, one after another; all of them, again and again, where there are fewer.
std::vector<data::SampleShape> draw_samples(const std::vector<MeasuredSample>& samples, int64_t global_batch_size,
                                            uint64_t seed);

/// The steps of one rank that the workload's drawn samples make. Empty without them.
std::vector<std::vector<data::SampleShape>> drawn_steps(const Workload& workload);

/// Of each of the workload's worst batches the step of one rank, the last sample standing for those that it lacks.
std::vector<std::vector<data::SampleShape>> worst_steps(const Workload& workload);

}  // namespace vlmtrain::planner

#pragma once

#include "train/evaluation_set.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The most samples that an evaluation computes at once where it is planned: on a GPU, and on the CPU, where more are
/// hardly faster.
inline constexpr int64_t kGpuEvalBatchSize = 32;
inline constexpr int64_t kCpuEvalBatchSize = 16;

/// Bytes of the largest sample of these batches once it is decoded.
int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& candidates);

/// What a configuration asks of the planner for evaluations of `evaluation_set`; training, and what may be taken, are
/// left open.
planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job);

}  // namespace vlmtrain::train

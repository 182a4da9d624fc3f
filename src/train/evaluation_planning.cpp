#include "train/evaluation_planning.h"

namespace vlmtrain::train {

int64_t largest_sample(const std::vector<planner::SampleBatch>& candidates) {
  int64_t most = 0;
  for (const auto& batch : candidates) {
    const data::SampleShape& shape = batch.shapes.front();
    // Its number, whether it is a label, and where its feature stands; beside grids three positions as well.
    const int64_t bytes_per_token = shape.grids.empty() ? 32 : 48;
    most = std::max(most, shape.pixel_rows * shape.row.bytes() + bytes_per_token * shape.tokens + shape.mask_bytes());
  }
  return most;
}

planner::EvaluationRequest evaluation_request(const Config& config, const EvaluationSet& set, planner::Job job) {
  const EvaluationOptions& options = config.evaluation;
  return {.job = std::move(job),
          .candidates = set.worst_batches(options.batch_size.value_or(kBatchOnCard)),
          .max_new_tokens = options.answers ? options.max_new_tokens : 0,
          .batch_size = options.batch_size,
          .largest_batch = kBatchOnCard};
}

}  // namespace vlmtrain::train

#include "train/evaluation_planning.h"

namespace vlmtrain::train {

int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& candidates) {
  int64_t max_bytes = 0;
  for (const auto& batch : candidates) {
    const data::SampleShape& shape = batch.shapes.front();
    // Its number, whether it is a label, and where its feature stands; beside grids three positions as well.
    const int64_t bytes_per_token = shape.grids.empty() ? 32 : 48;
    max_bytes =
        std::max(max_bytes, shape.pixel_rows * shape.row.bytes() + bytes_per_token * shape.tokens + shape.mask_bytes());
  }
  return max_bytes;
}

planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job) {
  const EvaluationOptions& options = config.evaluation;
  return {.job = std::move(job),
          .candidates = evaluation_set.find_worst_batches(options.batch_size.value_or(kGpuEvalBatchSize)),
          .max_new_tokens = options.answers ? options.max_new_tokens : 0,
          .batch_size = options.batch_size,
          .max_batch_size = kGpuEvalBatchSize};
}

}  // namespace vlmtrain::train

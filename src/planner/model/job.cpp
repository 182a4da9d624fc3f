#include "vlmtrain/planner/job.h"

#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::planner {

engine::Shard Job::shard() const {
  if (sharding == engine::Sharding::kNone) return {};
  const int64_t count = sharding == engine::Sharding::kHybrid ? world_size / nodes : world_size;
  return {.rank = rank % count, .count = count};
}

std::vector<engine::Sharding> list_possible_shardings(const Job& job) {
  std::vector shardings{engine::Sharding::kNone};
  if (job.world_size == 1 || job.objective.tasks.resolve_conflicts) return shardings;
  shardings.push_back(engine::Sharding::kOptimizer);
  if (job.lora && job.lora->use_dora) return shardings;
  if (job.nodes > 1 && job.nodes < job.world_size) shardings.push_back(engine::Sharding::kHybrid);
  shardings.push_back(engine::Sharding::kFull);
  return shardings;
}

Job with_precision(Job job, engine::Precision precision) {
  job.precision = precision;
  if (precision != engine::Precision::kFp16) {
    job.optimizer.loss_scale.reset();
  } else if (!job.optimizer.loss_scale) {
    job.optimizer.loss_scale.emplace();
  }
  return job;
}

std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device) {
  auto model = models::build_model(job.model, device, engine::to_dtype(job.precision), job.lora, job.quantization,
                                   job.block_shard());
  models::freeze(*model, job.frozen);
  return model;
}

}  // namespace vlmtrain::planner

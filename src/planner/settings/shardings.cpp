#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {

bool can_offload_weights(const Job& job) {
  return job.sharding != engine::ShardingStrategy::kOptimizer && !(job.lora && job.lora->use_dora);
}

bool can_offload_gradients(const Job& job) {
  return can_offload_weights(job) && !job.lora &&
         (job.world_size == 1 || job.sharding == engine::ShardingStrategy::kFull);
}

namespace {

/// Returns the shardings that the job supports without offloading.
std::vector<engine::ShardingStrategy> list_shardings_without_offload(const Job& job) {
  std::vector shardings{engine::ShardingStrategy::kNone};
  if (job.world_size == 1 || job.objective.tasks.resolve_gradient_conflicts) return shardings;
  shardings.push_back(engine::ShardingStrategy::kOptimizer);
  if (job.lora && job.lora->use_dora) return shardings;
  if (job.optimizer.needs_whole_parameters()) return shardings;
  if (job.num_nodes > 1 && job.num_nodes < job.world_size) shardings.push_back(engine::ShardingStrategy::kHybrid);
  shardings.push_back(engine::ShardingStrategy::kFull);
  return shardings;
}

/// Returns whether the job's offload supports the sharding.
bool supports_sharding(Job job, engine::ShardingStrategy sharding) {
  job.sharding = sharding;
  if (job.offload == engine::Offload::kGradients) return can_offload_gradients(job);
  return !engine::offloads_weights(job.offload) || can_offload_weights(job);
}

}  // namespace

std::vector<engine::ShardingStrategy> list_possible_shardings(const Job& job) {
  auto shardings = list_shardings_without_offload(job);
  std::erase_if(shardings, [&](engine::ShardingStrategy sharding) { return !supports_sharding(job, sharding); });
  return shardings;
}

namespace {

/// Returns why the job cannot have Job::offload.
std::string describe_offload_problem(const Job& job) {
  if (job.lora && job.lora->use_dora) return "DoRA needs the norms of weights that are not on the GPU";
  if (job.offload != engine::Offload::kGradients) return "weights that are whole on each rank are gathered in place";
  if (job.lora) return "the gradients of LoRA's adapters stay on the GPU";
  return fmt::format("gradients of {} ranks cannot be reduced in host memory", job.world_size);
}

/// Returns arguments that make the job possible: another sharding, or as much offloading as its sharding allows.
std::vector<std::string> list_possible_changes(const Job& job) {
  std::vector<std::string> changes;
  for (const auto sharding : list_possible_shardings(job)) {
    if (sharding != job.sharding)
      changes.push_back(fmt::format("{}={}", keys::distributed::kSharding, engine::to_string(sharding)));
  }
  Job other = job;
  for (const auto offload : {engine::Offload::kWeights, engine::Offload::kOptimizer}) {
    other.offload = offload;
    if (offload >= job.offload || !supports_sharding(other, job.sharding)) continue;
    changes.push_back(fmt::format("{}={}", keys::memory::kOffload, engine::to_string(offload)));
    break;
  }
  return changes;
}

}  // namespace

void check_offload(const Job& job, bool auto_sharding) {
  const bool is_possible = auto_sharding ? !list_possible_shardings(job).empty() : supports_sharding(job, job.sharding);
  if (is_possible) return;
  const std::string sharding =
      auto_sharding || job.sharding == engine::ShardingStrategy::kNone
          ? ""
          : fmt::format(" and {}={}", keys::distributed::kSharding, engine::to_string(job.sharding));
  throw usage_error("{}={}{}: {}; set {}", keys::memory::kOffload, engine::to_string(job.offload), sharding,
                    describe_offload_problem(job), fmt::join(list_possible_changes(job), " or "));
}

}  // namespace vlmtrain::planner

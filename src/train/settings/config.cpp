#include "vlmtrain/train/config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

/// Not tuned per model. Larger micro-batches take more memory but do not use the cores of a CPU
/// better.
constexpr int64_t kMaxAutoMicroBatchSize = 8;

}  // namespace

int64_t compute_total_steps(const engine::TrainingOptions& training, double batch_units_per_epoch) {
  if (training.max_steps) return *training.max_steps;
  const double steps = training.epochs * batch_units_per_epoch / static_cast<double>(training.global_batch_size);
  if (steps > static_cast<double>(engine::kMaxSteps)) {
    throw usage_error("{}: {} epochs of {:.0f} samples are {:.3g} steps of {}, more than {}; lower it",
                      keys::training::kEpochs, training.epochs, batch_units_per_epoch, steps,
                      training.global_batch_size, engine::kMaxSteps);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double batch_units_per_epoch) {
  const int64_t total_steps_from_start = compute_total_steps(training, batch_units_per_epoch);
  if (training.max_steps) return total_steps_from_start;
  constexpr double kEpochRoundingError = 1e-9;  // rounding error of `epochs`, which must not add a step
  const double remaining_batch_units = (training.epochs - epochs) * batch_units_per_epoch;
  return steps + std::max<int64_t>(
                     0, std::llround(std::ceil(remaining_batch_units / static_cast<double>(training.global_batch_size) -
                                               kEpochRoundingError)));
}

int64_t compute_max_micro_batch_size(const Config& config, int64_t world_size) {
  const engine::TrainingOptions& training = config.training;
  if (training.micro_batch_size) return *training.micro_batch_size;
  if (config.data.packing) return kMaxAutoMicroBatchSize;
  const int64_t samples_per_rank = training.global_batch_size / world_size;
  int64_t size = std::min(kMaxAutoMicroBatchSize, samples_per_rank);
  while (samples_per_rank % size != 0) --size;
  return size;
}

void check_micro_batch_size(const Config& config) {
  const auto& size = config.training.micro_batch_size;
  const int64_t global_batch_size = config.training.global_batch_size;
  if (!size || config.data.packing || (*size <= global_batch_size && global_batch_size % *size == 0)) return;
  throw usage_error("{}: {} does not divide {} {}; the global batch size is exact, so choose a divisor, or auto",
                    keys::training::kMicroBatchSize, *size, keys::training::kGlobalBatchSize, global_batch_size);
}

void check_sharding(const Config& config, int64_t world_size) {
  const auto sharding = config.distributed.sharding.value_or(engine::ShardingStrategy::kNone);
  if (sharding == engine::ShardingStrategy::kNone) return;
  if (world_size == 1) {
    spdlog::info("{}: has no effect with one rank", keys::distributed::kSharding);
    return;
  }
  if (config.training.batch_and_tasks.gradient_conflicts == engine::GradientConflictMethod::kPcGrad) {
    throw usage_error("{}={} and {}=pcgrad: PCGrad needs whole gradients, but each rank has only a shard; set {}=none",
                      keys::distributed::kSharding, engine::to_string(sharding), keys::training::kGradientConflicts,
                      keys::distributed::kSharding);
  }
  if (engine::shards_blocks(sharding) && config.training.optimizer.needs_whole_parameters()) {
    throw usage_error(
        "{}={}: the optimizer ({} or {}) needs whole matrices, but each rank has only a shard of every weight; set "
        "{}=optimizer",
        keys::distributed::kSharding, engine::to_string(sharding), keys::training::kOptimizer,
        keys::training::kParameterGroups, keys::distributed::kSharding);
  }
  if (engine::shards_blocks(sharding) && config.lora.use_dora) {
    throw usage_error(
        "{}={} and {}=true: DoRA needs the norms of all rows of the adapted weights, but each rank has only a shard; "
        "set {}=optimizer, or {}=false",
        keys::distributed::kSharding, engine::to_string(sharding), keys::lora::kUseDora, keys::distributed::kSharding,
        keys::lora::kUseDora);
  }
}

void check_world_size(const Config& config, int64_t world_size) {
  const int64_t global_batch_size = config.training.global_batch_size;
  check_sharding(config, world_size);
  if (world_size == 1) return;
  if (global_batch_size % world_size != 0) {
    const int64_t lower = global_batch_size / world_size * world_size;
    throw usage_error(
        "{}: {} cannot be divided among {} ranks; the global batch size is exact, so choose {}{}, or another number of "
        "ranks",
        keys::training::kGlobalBatchSize, global_batch_size, world_size, lower > 0 ? fmt::format("{} or ", lower) : "",
        lower + world_size);
  }
  const auto& micro_batch_size = config.training.micro_batch_size;
  if (micro_batch_size && !config.data.packing && global_batch_size / world_size % *micro_batch_size != 0) {
    throw usage_error(
        "{}: {} does not divide the {} samples per rank ({} ranks, global batch size {}); choose a divisor, or auto",
        keys::training::kMicroBatchSize, *micro_batch_size, global_batch_size / world_size, world_size,
        global_batch_size);
  }
  check_global_batch_tokens(config, world_size);
}

void check_global_batch_tokens(const Config& config, int64_t world_size) {
  if (world_size > 1 && config.training.batch_and_tasks.global_batch_tokens) {
    throw usage_error("{}: is {}, but is not supported with several ranks; train with one rank, or set {} alone",
                      keys::training::kGlobalBatchTokens, *config.training.batch_and_tasks.global_batch_tokens,
                      keys::training::kGlobalBatchSize);
  }
}

}  // namespace vlmtrain::train

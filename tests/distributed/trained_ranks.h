#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/thread_ranks.h"
#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "engine/stored_tensors.h"
#include "parity/deviations.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::distributed {

using Tensors = std::map<std::string, at::Tensor>;

constexpr engine::LearningRates kTestRates{1e-3, 1e-3, 1e-3};

/// Such a large epsilon makes the update proportional to the gradient, so that it does not amplify
/// rounding errors.
constexpr engine::OptimizerSettings kTestSettings{
    .adamw = {.epsilon = 1e-2}, .weight_decay = 0.1, .max_grad_norm = 0.5};

/// A training run of a test.
struct TrainConfig {
  std::string name;
  engine::OptimizerSettings settings = kTestSettings;
  at::ScalarType dtype = at::kFloat;
  double tolerance = 1e-5;
  std::optional<nn::LoraSettings> lora = std::nullopt;
  nn::Quantization quantization = nn::Quantization::kNone;
  models::FrozenParts frozen = {};
  models::RecomputeBlockCounts recompute = {};
  int64_t vision_tiles_per_pass = 0;
  std::string model = "mixed_batch";
  /// From the second step on one rank runs out of memory, each time at another allocation, and the
  /// step is retried.
  bool runs_out_of_memory = false;
};

/// Runs whose blocks differ in their weights and in what runs them.
inline std::vector<TrainConfig> list_block_configs() {
  constexpr double kBf16Tolerance = 3e-2;  // 16-bit products depend on the shapes of the operands
  return {
      TrainConfig{.name = "Fp32"},
      TrainConfig{.name = "Bf16", .dtype = at::kBFloat16, .tolerance = kBf16Tolerance},
      TrainConfig{.name = "Recomputed", .recompute = {.vision = 1, .language = 2}},
      TrainConfig{.name = "TilesInPasses", .recompute = {.vision = 1}, .vision_tiles_per_pass = 1},
      TrainConfig{.name = "FrozenTower", .frozen = {.vision_tower = true}},
      TrainConfig{.name = "FrozenLanguageModel", .frozen = {.language_model = true}},
      TrainConfig{.name = "Lora", .lora = nn::LoraSettings{.rank = 4}},
      TrainConfig{
          .name = "LoraWithDropout", .lora = nn::LoraSettings{.rank = 4, .dropout = 0.2}, .recompute = {.language = 1}},
      TrainConfig{.name = "LoraOnNf4",
                  .lora = nn::LoraSettings{.rank = 4, .excluded_components = {nn::Component::kVisionTower}},
                  .quantization = nn::Quantization::kNf4},
      TrainConfig{.name = "LoraOnInt8", .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kInt8},
      TrainConfig{.name = "LoraBesideSavedModules",
                  .lora = nn::LoraSettings{.rank = 4, .modules_to_save = {"layers.1.mlp"}}},
      TrainConfig{.name = "Windows", .model = "qwen2_5_vl_mixed"},
      TrainConfig{.name = "DeepStack", .model = "qwen3_vl_mixed"},
      TrainConfig{
          .name = "LayerScaleAndHeadNorms", .recompute = {.vision = 1, .language = 1}, .model = "internvl3_5_mixed"},
      TrainConfig{.name = "DeepStackRecomputed", .recompute = {.vision = 3, .language = 2}, .model = "qwen3_vl_images"},
      TrainConfig{.name = "GatedDeltaNets", .model = "qwen3_5_images"},
      TrainConfig{.name = "GatedDeltaNetsRecomputedLoraOnNf4",
                  .lora = nn::LoraSettings{.rank = 4, .excluded_components = {nn::Component::kVisionTower}},
                  .quantization = nn::Quantization::kNf4,
                  .recompute = {.language = 2},
                  .model = "qwen3_5_video"},
      TrainConfig{
          .name = "ImagesBothWays", .recompute = {.language = 2, .language_selective = 1}, .model = "gemma3_published"},
      TrainConfig{.name = "ClampedLinears", .recompute = {.vision = 1, .language = 2}, .model = "gemma4_tower"},
      TrainConfig{.name = "SharedKeys", .recompute = {.vision = 1, .language = 4}, .model = "gemma4_per_layer"}};
}

/// The state that is sharded, over `group` ranks; 0: over all, and what is in host memory.
struct ShardingConfig {
  engine::ShardingStrategy sharding = engine::ShardingStrategy::kNone;
  int64_t group = 0;
  engine::Offload offload = engine::Offload::kNone;
  bool offload_activations = false;
};

constexpr ShardingConfig kUnsharded{}, kShardedOptimizer{.sharding = engine::ShardingStrategy::kOptimizer},
    kFullySharded{.sharding = engine::ShardingStrategy::kFull}, kHostWeights{.offload = engine::Offload::kWeights},
    kHostGradients{.offload = engine::Offload::kGradients},
    kEverythingOnHost{.offload = engine::Offload::kGradients, .offload_activations = true},
    kShardedHostWeights{.sharding = engine::ShardingStrategy::kFull, .offload = engine::Offload::kWeights},
    kShardedOnHost{.sharding = engine::ShardingStrategy::kFull,
                   .offload = engine::Offload::kGradients,
                   .offload_activations = true};

struct TrainResult {
  std::vector<double> losses, norms;
  Tensors weights;
  Tensors state;  // merged over all ranks
  CollectiveTraffic all_reduce_traffic, reduce_scatter_traffic, all_gather_traffic;
  int64_t retried_steps = 0;
};

/// The final state, which must be equal on all ranks except for sharded state.
inline void merge_result(TrainResult& merged, const TrainResult& result) {
  if (merged.weights.empty()) {
    merged = result;
    return;
  }
  EXPECT_EQ(result.losses, merged.losses);
  EXPECT_EQ(result.norms, merged.norms);
  for (const auto& [name, weight] : result.weights) EXPECT_TRUE(at::equal(weight, merged.weights.at(name))) << name;
  for (const auto& [name, tensor] : result.state) merged.state.emplace(name, tensor);
}

/// Checkpoint state as on all ranks: nonzero second adapter factors, and trained weights from
/// `initial`.
inline void set_weights(models::VisionLanguageModel& model, const std::string& name, const Tensors& initial) {
  models::load_weights(model, parity::Case(name).checkpoint());
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.tensor.requires_grad()) continue;
    if (const auto it = initial.find(parameter.name); it != initial.end()) {
      parameter.set_values(it->second);
    } else if (parameter.is_adapter) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(parameter.name));
      parameter.tensor.detach().normal_(0, 0.1, generator);
    }
  }
}

/// Returns the unsharded trained weights of a model whose weights may be sharded. Called by one
/// rank at a time; the others take part.
inline Tensors trained_weights(const nn::ParameterStore& store) {
  Tensors weights;
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) weights[parameter.name] = store.unshard_values(parameter).clone();
  }
  return weights;
}

/// Trains `steps` steps of eight samples, each rank on every `ranks`-th sample. Other models use
/// the samples of their parity cases. Starts from `initial` if it is not empty.
inline TrainResult train(int64_t ranks, const ShardingConfig& sharding, const TrainConfig& config, int64_t steps,
                         const TrainResult& initial = {}) {
  TrainResult merged;
  std::mutex mutex;
  run_ranks(ranks, [&](const LaunchInfo& launch) {
    DistributedContext process_group(launch);
    const int64_t group = sharding.group > 0 ? sharding.group : ranks;
    if (group < ranks) process_group.set_shard_group_size(group);
    const RankConsensus consensus(process_group.collectives());
    const nn::Shard shard = sharding.sharding == engine::ShardingStrategy::kNone
                                ? nn::Shard{}
                                : nn::Shard{.rank = launch.rank % group, .count = group};
    const auto model = models::build_model(
        parity::Case(config.model).checkpoint(), at::kCPU, config.dtype, config.lora, config.quantization,
        shards_blocks(sharding.sharding) ? shard : nn::Shard{}, nn::MemoryPlacement::kDevice,
        engine::offloads_weights(sharding.offload) ? nn::MemoryPlacement::kHost : nn::MemoryPlacement::kDevice);
    models::freeze_parts(*model, config.frozen);
    model->set_recompute_block_counts(config.recompute);
    model->set_vision_tiles_per_pass(config.vision_tiles_per_pass);
    set_weights(*model, config.model, initial.weights);
    engine::TrainingState training(*model, config.settings, 1, shard,
                                   {.offload = sharding.offload, .offloads_activations = sharding.offload_activations});
    if (!initial.state.empty()) training.optimizer.load_state(initial.state, "the test");
    training.set_consensus(consensus);
    std::vector<data::Sample> samples;
    const auto all_samples =
        config.model == "mixed_batch" ? engine::batch_of_eight() : parity::Case(config.model).samples();
    for (size_t i = static_cast<size_t>(launch.rank); i < all_samples.size(); i += static_cast<size_t>(ranks)) {
      samples.push_back(all_samples[i]);
    }
    const engine::CrossEntropyObjective objective(engine::TaskSettings{});
    TrainResult result;
    memory::AllocationFaultInjector faults;
    int64_t allocations = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const engine::StepInput input{.objective = objective,
                                    .samples = samples,
                                    .normalizers = consensus.sum_over_ranks(objective.compute_normalizers(samples))};
      engine::TrainingStep step(training, input, consensus);
      const auto layout = engine::SmallStep{.micro_batch_size = 1}.make_layout(*model, samples);
      const bool is_failing = config.runs_out_of_memory && i > 0 && launch.rank == i % ranks;
      faults.arm({.failing_allocation_index = is_failing ? allocations * i / steps : -1});
      auto status = engine::StepStatus::kOk;
      try {
        step.accumulate(layout);
      } catch (const engine::StepOutOfMemory&) {
        status = engine::StepStatus::kRetrySmaller;
      }
      allocations = std::max(allocations, faults.num_allocations());
      faults.disarm();
      if (consensus.all_reduce_max(status) != engine::StepStatus::kOk) {
        ++result.retried_steps;
        training.gradient_buckets.reset();
        step.accumulate(layout);
      }
      step.prepare();
      const auto step_result = step.apply_update(kTestRates);
      result.losses.push_back(step_result.loss.item<double>());
      result.norms.push_back(step_result.grad_norm.item<double>());
    }
    if (training.optimizer_sync) training.optimizer_sync->wait_for_weights();
    result.all_reduce_traffic = process_group.collectives().all_reduce_traffic();
    result.reduce_scatter_traffic = process_group.collectives().reduce_scatter_traffic();
    result.all_gather_traffic = process_group.collectives().all_gather_traffic();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      if (rank == launch.rank) result.weights = trained_weights(model->parameters());
      model->parameters().join_remaining_passes();
    }
    for (const auto& [name, tensor] : read_tensors(training.optimizer.state())) result.state[name] = tensor.clone();
    const std::lock_guard lock(mutex);
    merge_result(merged, result);
  });
  return merged;
}

inline void expect_same(const TrainResult& actual, const TrainResult& expected, double tolerance) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1, tolerance) << "step " << i;
    EXPECT_NEAR(actual.norms[i] / expected.norms[i], 1, tolerance) << "step " << i;
  }
  for (const auto& [name, weight] : expected.weights) {
    if (parity::has_zero_true_gradient(name)) continue;
    EXPECT_LT(parity::relative_difference(actual.weights.at(name).to(at::kDouble), weight.to(at::kDouble)), tolerance)
        << name;
  }
}

}  // namespace vlmtrain::distributed

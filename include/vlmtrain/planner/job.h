#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/host_link.h"
#include "vlmtrain/models/model_settings.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::data {
struct SampleIndex;
}
namespace vlmtrain::models {
class VisionLanguageModel;
}

namespace vlmtrain::planner {

/// The settings of a run that determine the memory and time of a step, except for its samples.
struct Job {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  engine::Precision precision = engine::Precision::kBf16;
  models::FrozenParts frozen_parts = {};
  std::optional<nn::LoraSettings> lora = std::nullopt;  ///< nullopt: full fine-tuning
  nn::Quantization quantization = nn::Quantization::kNone;
  kernels::KernelSet disabled_kernels = {};  ///< custom kernels that ATen replaces
  engine::OptimizerSettings optimizer = {};  ///< has a loss scale if, and only if, the precision is fp16
  engine::ObjectiveSettings objective = {};  ///< in dry runs, all samples belong to the first task
  int64_t world_size = 1;                    ///< number of ranks; a dry run simulates one of them
  int64_t rank = 0;                          ///< the simulated rank
  int64_t num_nodes = 1;                     ///< machines, each with the same number of consecutive ranks
  engine::ShardingStrategy sharding = engine::ShardingStrategy::kNone;
  nn::MemoryPlacement per_layer_tables = nn::MemoryPlacement::kDevice;  ///< memory of per-layer embeddings
  engine::Offload offload = engine::Offload::kNone;                     ///< what is in host memory
  bool offload_activations = false;  ///< whether inputs of recomputed blocks are in host memory
  /// Bytes for these inputs. nullopt: as many as they need, so that dry runs measure them.
  std::optional<int64_t> max_host_activation_bytes = std::nullopt;
  /// Measured speed of the link to host memory; nullopt: that of data sheets (get_host_link_speed()).
  std::optional<memory::HostLinkSpeed> host_link = std::nullopt;

  /// Returns the rank's shard of moments and master weights.
  engine::Shard shard() const;
  /// Returns the settings of host memory.
  engine::HostMemorySettings host_memory() const {
    return {.offload = offload,
            .offloads_activations = offload_activations,
            .max_activation_bytes = max_host_activation_bytes};
  }
  /// Returns the rank's shard of the weights of blocks; everything if blocks are not sharded.
  engine::Shard block_shard() const { return engine::shards_blocks(sharding) ? shard() : engine::Shard(); }
};

/// Returns whether the weights of blocks may be in host memory. DoRA computes norms of whole weights before
/// the blocks run, and sharding of the optimizer state alone gathers whole weights in place.
bool can_offload_weights(const Job& job);
/// Returns whether the gradients of these weights may be in host memory, too: those of a full fine-tuning on
/// one rank or with full sharding. Other reductions are in place.
bool can_offload_gradients(const Job& job);

/// Returns the shardings that the job supports, in increasing order of the memory they save; empty if its
/// offload supports none. PCGrad compares whole gradients, so that it supports no sharding. DoRA
/// computes norms of whole weights and Muon updates whole matrices, so that they support only
/// kOptimizer. kHybrid is included if there are several nodes with several ranks each; otherwise it
/// equals kFull or kNone. See can_offload_weights() and can_offload_gradients().
std::vector<engine::ShardingStrategy> list_possible_shardings(const Job& job);

/// Throws UserError (kUsage), with values that are possible, if the job cannot have Job::offload. With
/// `auto_sharding`, it may have any sharding that it supports.
void check_offload(const Job& job, bool auto_sharding);

/// Returns the job with another precision. fp16 adds a default loss scale unless the job has one;
/// other precisions remove it.
Job make_job_with_precision(Job job, engine::Precision precision);

/// Returns the job's model on `device`, frozen according to the job. Weights are uninitialized.
/// Throws UserError if the model's files are invalid, and (kUsage) for tables in host memory that
/// do not exist or are trained.
std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device);

/// Returns whether the job's per-layer embeddings may be in host memory: they exist and are frozen;
/// false if the folder has no config.json. Throws the exceptions of build_model().
bool can_keep_tables_on_host(const Job& job);

/// A global batch that training may draw.
struct SampleBatch {
  /// The sample shapes in decreasing order of size, at least one. If there are fewer shapes than
  /// samples in a global batch, the last one represents the remaining samples.
  std::vector<data::SampleShape> shapes;
  std::string first_sample_id;  ///< id of the sample of shapes.front(); empty for synthetic samples
};

/// The size of packs and of micro-batches of packs. A pack is a sequence of several samples.
struct PackingParams {
  double mean_samples_per_pack = 1;    ///< mean over the training data
  int64_t fixed_micro_batch_size = 0;  ///< StepConstraints::micro_batch_size; 0: not set
};

/// The samples that a plan has to fit.
struct Workload {
  /// Candidates for the worst global batch (find_worst_batches()). Dry runs decide which one needs
  /// the most memory. Not empty.
  std::vector<SampleBatch> worst_batches;
  int64_t global_batch_size = 16;  ///< samples, or packs if `packing` is set, of all ranks
  int64_t world_size = 1;
  int64_t num_nodes = 1;                                ///< machines with the same number of ranks each
  double network_gbit = 100;                            ///< bandwidth of a machine, 10⁹ bits per second
  std::optional<PackingParams> packing = std::nullopt;  ///< set if global_batch_size counts packs
  /// The samples of one rank in an average step, in order; empty: unknown.
  std::vector<data::SampleShape> average_step_shapes{};
  /// The samples of some steps of the training data, by rank; empty if all samples are alike.
  std::vector<data::ShapesByRank> sampled_steps = {};

  /// Returns the number of samples of a step on one rank. For packs, it is the mean rounded to a
  /// multiple of the fixed micro-batch size or, if none is fixed, to a number with many divisors.
  int64_t samples_per_rank() const;
  /// Throws UserError (kUsage) unless the ranks divide the global batch.
  void check_divisible() const;
};

/// Returns the divisors of a positive number in ascending order.
std::vector<int64_t> find_divisors(int64_t number);

/// Returns the error (kUsage) of a micro-batch size that does not divide a rank's samples. Lists the
/// sizes that do.
UserError make_micro_batch_size_error(int64_t micro_batch_size, int64_t samples_per_rank, int64_t global_batch_size);

/// Returns the number of steps to sample for Workload::sampled_steps: 4 to 48, fewer for large
/// steps. REQUIRES: samples_per_step > 0.
int64_t compute_num_sampled_steps(int64_t samples_per_step);

/// Returns for each sampled step the samples of the rank with the most tokens, since the other
/// ranks wait for this one. Returns an empty list if there are no sampled steps.
std::vector<std::vector<data::SampleShape>> find_heaviest_rank_steps(const Workload& workload);

/// The samples of one rank in one sampled step.
struct SampledRankStep {
  int64_t rank = 0;
  int64_t step = 0;  ///< index in Workload::sampled_steps
  std::vector<data::SampleShape> samples{};

  int64_t tokens() const;
};

/// Returns for each rank that has samples its sampled step with the most tokens.
std::vector<SampledRankStep> find_largest_rank_steps(const Workload& workload);

/// Returns for each of workload.worst_batches the samples of one rank's step. Repeats the last
/// shape of a batch that has too few.
std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload);

/// Returns the candidates for the worst global batch: the largest samples by tokens, by rows of
/// pixels, by label tokens, and by masks if there are any. Among equal samples, the earlier ones
/// are taken. Duplicate batches are removed. If any sample has label weights, all samples of the
/// batches have them, as in a micro-batch with that sample. REQUIRES: the shape of at least one sample is known.
std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size);

/// Returns the number of items of each kind if `count` items are divided in proportion to `shares`,
/// by the largest remainder method (Hamilton). The earlier of equal remainders wins. REQUIRES:
/// shares ≥ 0, not all 0.
std::vector<int64_t> distribute_proportionally(std::span<const double> shares, int64_t count);

/// Returns a sequence of kinds in which kind k occurs counts[k] times, spread so that each part of
/// the sequence has nearly the same proportions.
std::vector<size_t> interleave_evenly(std::span<const int64_t> counts);

}  // namespace vlmtrain::planner

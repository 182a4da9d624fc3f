#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/lora_settings.h"
#include "vlmtrain/nn/weights/quantization.h"

namespace vlmtrain::planner {

/// The settings of a run that determine the memory and time of a step, except for its samples.
struct Job {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  engine::Precision precision = engine::Precision::kBf16;
  models::FrozenParts frozen = {};
  std::optional<nn::LoraSettings> lora = std::nullopt;  ///< nullopt: full fine-tuning
  nn::Quantization quantization = nn::Quantization::kNone;
  kernels::KernelSet disabled_kernels = {};  ///< custom kernels that ATen replaces
  engine::AdamWSettings optimizer = {};      ///< has a loss scale if, and only if, the precision is fp16
  engine::ObjectiveSettings objective = {};  ///< samples of dry runs all belong to the first task
  int64_t world_size = 1;                    ///< ranks, one of which is dry-run
  int64_t rank = 0;                          ///< the rank that is dry-run
  int64_t nodes = 1;                         ///< machines, each with the same number of consecutive ranks
  engine::Sharding sharding = engine::Sharding::kNone;

  /// Returns the shard of moments and master weights.
  engine::Shard shard() const;
  /// Returns the shard of the weights of blocks.
  engine::Shard block_shard() const { return engine::shards_blocks(sharding) ? shard() : engine::Shard(); }
};

/// Returns the shardings that the job supports, in increasing order of the memory they save, starting
/// with kNone. PCGrad compares whole gradients and DoRA computes norms of whole weights, which rules
/// shardings out. `hybrid` differs from `full` only if nodes have several ranks each.
std::vector<engine::Sharding> list_possible_shardings(const Job& job);

/// Returns the job in another precision, with a loss scale if that is fp16.
Job with_precision(Job job, engine::Precision precision);

/// Returns the job's model on `device`, frozen according to the job. Weights have no values. Throws
/// UserError if the model's files are invalid.
std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device);

/// A global batch that training may draw.
struct SampleBatch {
  /// The shapes in decreasing order, at least one. If there are fewer than a global batch has, the last
  /// one stands for the others.
  std::vector<data::SampleShape> shapes;
  std::string first_sample_id;  ///< empty for synthetic samples
};

/// The number of samples in a global batch of packs.
struct PackedSamples {
  double samples_per_pack = 1;         ///< mean
  int64_t fixed_micro_batch_size = 0;  ///< StepConstraints::micro_batch_size; 0: not set
};

/// The samples that a plan has to fit.
struct Workload {
  /// Candidates for the worst global batch: the samples with the most tokens, the most tiles, the most
  /// label tokens. Dry runs decide which one needs the most memory.
  std::vector<SampleBatch> candidates;
  int64_t global_batch_size = 16;  ///< samples or packs of all ranks
  int64_t world_size = 1;
  int64_t nodes = 1;                                   ///< machines with the same number of ranks each
  double network_gbit = 100;                           ///< bandwidth between two machines, 10⁹ bits per second
  std::optional<PackedSamples> packed = std::nullopt;  ///< set if global_batch_size counts packs
  /// The samples of one rank in an average step, in order; empty: unknown.
  std::vector<data::SampleShape> average{};
  /// The samples of some steps, by rank; empty if all steps are like the worst.
  std::vector<data::ShapesByRank> sampled_steps = {};

  /// Returns the samples of a step on one rank. For packs it is a number close to their mean that is a
  /// multiple of the fixed micro-batch size, or else of many micro-batch sizes.
  int64_t samples_per_rank() const;
};

/// Returns the number of steps to sample: 4 to 48, fewer for large steps.
int64_t num_steps_to_sample(int64_t samples_per_step);

/// Returns for each sampled step the samples of the rank with the most tokens, which the other ranks
/// wait for. Empty without sampled steps.
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

/// Returns for each candidate the step of one rank. The last sample is repeated as often as needed.
std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload);

/// Returns the distinct candidates for the worst global batch: the largest samples by tokens, by tiles,
/// by label tokens, by masks. The first of equal samples wins. REQUIRES: a sample of known shape.
std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size);

/// Splits `count` items into kinds in proportion to `shares` with the largest remainder method
/// (Hamilton). The earlier of equal remainders wins. REQUIRES: shares ≥ 0, not all 0.
std::vector<int64_t> apportion(std::span<const double> shares, int64_t count);

/// Returns a sequence with counts[k] items of kind k in which every stretch has nearly the same shares.
std::vector<size_t> interleave_evenly(std::span<const int64_t> counts);

}  // namespace vlmtrain::planner

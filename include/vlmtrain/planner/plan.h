#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/split_plan.h"
#include "vlmtrain/planner/target_gpu.h"

namespace vlmtrain::planner {

/// The values of a StepConfig that the user has set. The planner chooses the others.
struct StepConstraints {
  std::optional<int64_t> micro_batch_size;
  RecomputeOption recompute;
  std::optional<int64_t> vision_tiles_per_pass;
  std::optional<int64_t> loss_chunk_rows;
  bool expandable_segments = true;
};

/// Sets the fixed micro-batch size of packed samples.
inline void apply_constraints(const StepConstraints& constraints, Workload& workload) {
  if (workload.packed) workload.packed->fixed_micro_batch_size = constraints.micro_batch_size.value_or(0);
}

/// The memory and time of a step with one StepConfig.
struct StepEstimate {
  StepConfig step_config;
  StepPeaks peaks;
  double step_seconds = 0;       ///< predicted (src/planner/dry_run/cost_recorder.h)
  double tokens_per_second = 0;  ///< of all ranks, for the worst samples
  bool fits = false;
  bool from_dry_run = false;  ///< otherwise the peaks are interpolated between dry runs
};

/// The result of dry-running an average step with the best StepConfig.
struct AverageStep {
  std::vector<SampleGroup> samples;  ///< of one rank, each shape once
  StepPeaks peaks;
  double step_seconds = 0;        ///< predicted
  double tokens_per_second = 0;   ///< of all ranks
  double samples_per_second = 0;  ///< of all ranks
};

/// A change of the command that the planner proposes, and its effect.
struct Suggestion {
  /// Arguments to append to the command: `key=value`, or a flag with its value. Several are needed
  /// together. Empty if no argument does it.
  std::vector<std::string> arguments;
  std::string note;  ///< the effect, and the memory that is needed then
  bool makes_it_fit = false;
  int64_t total_bytes = 0;  ///< minimum memory with the change; 0: not dry-run

  /// Returns arguments and note on one line.
  std::string text() const;
};

/// The result of dry-running a sampled step of one rank with the best StepConfig, from an empty cache.
struct RankStep {
  int64_t rank = 0;
  int64_t sampled_step = 0;  ///< index in Workload::sampled_steps of the rank's step with the most tokens
  StepPeaks peaks;
};

/// The duration of planning.
struct PlanningEffort {
  double seconds = 0;
  int64_t num_dry_runs = 0;
  double dry_run_seconds = 0;
};

/// The samples that remain after one of their limits is lowered.
struct LimitedSamples {
  Workload workload;
  int64_t num_dropped = 0;  ///< samples above the limit
  int64_t num_samples = 0;  ///< before they are dropped; 0: the samples are synthetic
};

/// A numeric setting that makes samples smaller if it is lowered: the pixels of an image, the frames of
/// a video, the length of a sample.
struct SampleLimit {
  std::string argument_format;  ///< "data.image_max_pixels={}"
  int64_t current = 0;          ///< the smallest value that changes nothing
  /// Returns the smallest useful value. Computed on demand, since it may measure samples.
  std::function<int64_t()> find_min;
  int64_t multiple = 1;     ///< proposed values are multiples of it
  std::string description;  ///< "smaller images"
  /// Returns the samples with this value, or nullopt if it is not allowed. Without `all_samples` only
  /// those that are the largest today are measured, which is faster.
  std::function<std::optional<LimitedSamples>(int64_t limit, bool all_samples)> measure;
};

/// The syntax in which suggestions are phrased for the command that asked for a plan.
struct FlagSyntax {
  std::string gpu;                             ///< "--gpu {}" or "--gpu-gb {}"; empty: the GPU cannot be chosen
  bool gpu_by_size = false;                    ///< the value is a size in gigabytes, not a name
  std::string lora_argument = "lora.rank={}";  ///< enables LoRA of rank `lora_rank`
  int64_t lora_rank = 16;
};

/// The input of make_plan().
struct PlanRequest {
  std::string model;  ///< as the user wrote it
  Job job;
  bool chooses_sharding = false;  ///< choose the fastest sharding that fits instead of job.sharding
  TargetGpu target;
  MemoryMode mode = MemoryMode::kBalanced;
  std::optional<double> limit_gigabytes;  ///< memory.limit_gb
  Workload workload;
  StepConstraints constraints;
  std::vector<SampleLimit> sample_limits = {};  ///< the smallest change first
  FlagSyntax flags = {};
  bool with_timeline = false;
  bool with_suggestions = true;  ///< the slowest part of planning if nothing fits
  bool with_split = true;        ///< compute Plan::split
};

/// The result of make_plan().
struct Plan {
  std::string model;  ///< as the user wrote it
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  /// The worst step in micro-batches of equal size. If nothing fits: the allowed StepConfig that needs the
  /// least memory.
  StepEstimate best;
  /// The split of each step by the memory of its samples; nullopt: all steps are split like the worst.
  std::optional<SplitPlan> split = std::nullopt;
  DryRunDetail detail;
  StepCosts costs;  ///< of the dry-run step, which may have fewer micro-batches
  MemoryLimit limit;
  Workload workload;
  SampleBatch worst;                             ///< the candidate that needs the most memory with `best`
  std::optional<AverageStep> average;            ///< set if the workload has an average step
  std::optional<Communication> communication{};  ///< set for several ranks
  std::vector<RankStep> rank_steps{};            ///< by rank; at most the 64 ranks with the most tokens
  StepConstraints constraints;
  TargetGpu target;
  std::vector<StepEstimate> alternatives;  ///< by micro-batch size, then by recomputed blocks
  std::vector<Suggestion> suggestions;
  PlanningEffort effort;

  int64_t accumulation_steps() const { return workload.samples_per_rank() / best.step_config.micro_batch_size; }
  /// Returns the memory outside PyTorch's allocator: context and communication.
  int64_t overhead_bytes() const { return limit.context_bytes + limit.communication_bytes; }
  /// Returns the peaks of the worst step in equal micro-batches or, if they are higher, of split steps.
  StepPeaks peaks() const;
  /// Returns the reserved peak plus overhead_bytes().
  int64_t total_bytes(const StepEstimate& estimate) const { return estimate.peaks.reserved_bytes + overhead_bytes(); }
  int64_t total_bytes() const { return peaks().reserved_bytes + overhead_bytes(); }
  /// Returns the content of `plan --json` and plan.json.
  nlohmann::ordered_json to_json() const;
};

/// Returns the plan with the lowest predicted step time of those that fit.
///
/// Candidates are dry-run on a virtual GPU that reports the target's size and has no limit. If the
/// reserved peak stays below the limit, a GPU of that size makes the same allocations.
///
/// Micro-batch sizes divide a rank's share of the global batch. Blocks are recomputed in increasing
/// order of time per saved byte, as few as fit. Four short dry runs measure the cost of a sample and of a
/// block. The search predicts the best StepConfig from them and dry-runs it in full (four steps of
/// changing sizes), until it fits and neither one recomputed block less nor the next larger micro-batch
/// does. If nothing fits, the allowed StepConfig with the lowest memory is dry-run. If that one fits,
/// smaller vision passes and loss chunks are tried until it is reached. Otherwise it is the plan,
/// `fits` is false, and each suggestion is dry-run; the smallest change comes first.
///
/// Throws UserError (kUsage) if the global batch is not a multiple of the ranks or a fixed micro-batch
/// size does not divide a rank's share, and the exceptions of build_model().
Plan make_plan(const PlanRequest& request);

}  // namespace vlmtrain::planner

#pragma once

#include <fmt/core.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/split_plan.h"
#include "vlmtrain/planner/target.h"

namespace vlmtrain::planner {

/// The values of a StepConfig that the user has set. The planner chooses those that are nullopt or
/// `auto`.
struct StepConstraints {
  std::optional<int64_t> micro_batch_size;
  RecomputeOption recompute;
  std::optional<int64_t> vision_tiles_per_pass;
  std::optional<int64_t> loss_chunk_rows;
  bool expandable_segments = true;
};

/// Copies the micro-batch size of `constraints` into workload.packing, if the samples are packed.
inline void apply_fixed_micro_batch_size(const StepConstraints& constraints, Workload& workload) {
  if (workload.packing) workload.packing->fixed_micro_batch_size = constraints.micro_batch_size.value_or(0);
}

/// The memory and time of a step with one StepConfig.
struct StepEstimate {
  StepConfig step_config;
  StepPeaks peaks;
  double step_seconds = 0;       ///< predicted (src/planner/dry_run/cost_recorder.h)
  double tokens_per_second = 0;  ///< predicted sum over all ranks, for the worst samples
  bool fits = false;             ///< reserved peak within the limit
  bool is_from_dry_run = false;  ///< false: the peaks are interpolated between dry runs
};

/// The result of dry-running an average step with the best StepConfig.
struct AverageStepEstimate {
  std::vector<SampleGroup> samples;  ///< samples of one rank, one group for each distinct shape
  StepPeaks peaks;
  double step_seconds = 0;        ///< predicted
  double tokens_per_second = 0;   ///< predicted sum over all ranks
  double samples_per_second = 0;  ///< predicted sum over all ranks
};

/// A change of the command that the planner proposes, and its effect.
struct Suggestion {
  /// Arguments to append to the command: `key=value`, or a flag followed by its value. All of them
  /// are needed together. Empty if the change cannot be expressed as arguments.
  std::vector<std::string> arguments;
  std::string note;             ///< the effect, and how much memory the job needs with the change
  bool makes_plan_fit = false;  ///< a dry run with the change fits, or the plan fits already
  int64_t total_bytes = 0;      ///< minimum memory with the change; 0: not dry-run

  /// Returns "<arguments>: <note>", or only the note if there are no arguments.
  std::string text() const;
};

/// The result of dry-running the largest sampled step of one rank with the best StepConfig,
/// starting with an empty allocator cache.
struct RankStepPeaks {
  int64_t rank = 0;
  int64_t sampled_step_index = 0;  ///< index in Workload::sampled_steps
  StepPeaks peaks;
};

/// The duration of planning, and its dry runs.
struct PlanningStats {
  double seconds = 0;  ///< wall time of planning
  int64_t num_dry_runs = 0;
  double dry_run_seconds = 0;  ///< sum of the durations of the dry runs
};

/// The samples that remain after a SampleLimit is lowered.
struct LimitedSamples {
  Workload workload;        ///< workload of the remaining samples
  int64_t num_dropped = 0;  ///< samples that exceed the lower limit and are dropped
  int64_t num_samples = 0;  ///< samples before dropping; 0 for synthetic samples
};

/// A numeric setting that makes samples smaller if it is lowered, such as the maximum number of
/// pixels of an image, of frames of a video, or of tokens of a sample. Suggestions propose lower
/// values.
struct SampleLimit {
  std::string argument_format;   ///< fmt format of an argument, such as "data.image_max_pixels={}"
  int64_t max_useful_value = 0;  ///< the smallest value that changes no sample
  /// Returns the smallest useful value. A function, since finding it may measure samples.
  std::function<int64_t()> find_min;
  int64_t granularity = 1;  ///< proposed values are multiples of this number
  std::string description;  ///< effect of a lower value, such as "smaller images"
  /// Returns the samples with the setting at `limit`, or nullopt if that value is not allowed. If
  /// `all_samples` is false, measures only the samples that are the largest with the current value,
  /// which is faster.
  std::function<std::optional<LimitedSamples>(int64_t limit, bool all_samples)> measure;
};

/// The syntax of the command that requested the plan, for the arguments of suggestions.
struct FlagSyntax {
  /// fmt format of the flag that selects the GPU: "--gpu {}" or "--gpu-gb {}". Empty: the command
  /// cannot choose a GPU.
  std::string gpu_flag_format;
  bool selects_gpu_by_size = false;  ///< the flag takes a size in GiB, not a name
  std::string lora_argument_format =
      fmt::format("{}={{}}", keys::lora::kRank);  ///< fmt format of the argument that enables LoRA; {} is the rank
  int64_t lora_rank = 16;                         ///< LoRA rank that suggestions propose
};

/// The input of make_plan().
struct PlanRequest {
  std::string model;           ///< model name or path as the user wrote it
  Job job;                     ///< job.world_size is replaced by workload.world_size
  bool auto_sharding = false;  ///< choose the fastest sharding that fits instead of job.sharding
  /// Choose the memory of per-layer embeddings instead of job.per_layer_tables: host memory where
  /// that makes the plan fit or faster.
  bool auto_per_layer_tables = false;
  /// Choose what is in host memory instead of job.offload: as little as makes the plan fit, or more where that
  /// is faster.
  bool auto_offload = false;
  /// Choose whether inputs of recomputed blocks are in host memory instead of job.offload_activations: where
  /// that makes the plan fit or faster.
  bool auto_offload_activations = false;
  /// Host memory that the ranks of a machine may page-lock, before the margin; nullopt: unknown.
  std::optional<int64_t> host_memory_bytes = std::nullopt;
  PlanTarget target;
  MemoryMode mode = MemoryMode::kBalanced;
  std::optional<double> limit_gigabytes;  ///< memory.limit_gb, in 10⁹ bytes; nullopt for `auto`
  Workload workload;
  StepConstraints constraints;
  /// Evaluations during the run: worst_batches, max_new_tokens and batch sizes; nullopt: none.
  std::optional<EvaluationRequest> evaluation = std::nullopt;
  std::vector<SampleLimit> sample_limits = {};  ///< limits that suggestions may lower, in this order
  FlagSyntax flags = {};
  bool with_timeline = false;    ///< record DryRunDetail::timeline
  bool with_suggestions = true;  ///< make suggestions if nothing fits, which is slow
  bool with_split_plan = true;   ///< compute Plan::split

  /// REQUIRES: the plan is for a GPU.
  TargetGpu& gpu() { return std::get<TargetGpu>(target); }
  const TargetGpu& gpu() const { return std::get<TargetGpu>(target); }
};

/// The result of make_plan().
struct Plan {
  std::string model;  ///< PlanRequest::model
  Job job;            ///< with the chosen sharding and memory
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  /// The fastest StepConfig that fits, estimated for the worst step in micro-batches of equal size.
  /// If nothing fits: the StepConfig within the constraints that needs the least memory.
  StepEstimate best_estimate;
  /// Splits each step by the memory of its samples; nullopt: all steps are split like the worst
  /// step.
  std::optional<SplitPlan> split = std::nullopt;
  std::optional<EvaluationPlan> evaluation = std::nullopt;  ///< of PlanRequest::evaluation; nullopt if nothing fits
  DryRunDetail detail;                                      ///< of the dry run of `best_estimate`
  std::optional<StepCosts> costs = {};  ///< of the dry-run step, which has at most two micro-batches; on GPUs
  MemoryLimit limit;
  Workload workload;
  SampleBatch worst_batch;                                   ///< the worst batch of the workload, given `best_estimate`
  std::optional<AverageStepEstimate> average_step_estimate;  ///< set if the workload has an average step
  std::optional<CommunicationEstimate> communication_estimate{};  ///< set for several GPUs
  /// The largest sampled step of each rank, by rank; at most the 64 ranks with the most tokens.
  /// Empty for one rank, on a host, and if nothing fits.
  std::vector<RankStepPeaks> rank_step_peaks{};
  StepConstraints constraints;
  PlanTarget target;
  std::vector<StepEstimate> alternatives;  ///< sorted by micro-batch size, then by recomputed blocks
  std::vector<Suggestion> suggestions;     ///< faster settings if the plan fits, otherwise changes that fit
  PlanningStats planning_stats;

  /// Returns the number of micro-batches per step, if they have equal size.
  int64_t gradient_accumulation_steps() const {
    return workload.samples_per_rank() / best_estimate.step_config.micro_batch_size;
  }
  /// REQUIRES: the plan is for a GPU.
  TargetGpu& gpu() { return std::get<TargetGpu>(target); }
  const TargetGpu& gpu() const { return std::get<TargetGpu>(target); }
  /// Returns the peaks of the worst step in equal micro-batches or, if they are higher, of split
  /// steps.
  StepPeaks peaks() const;
  /// Returns the page-locked host memory of a rank.
  int64_t host_bytes() const { return detail.host_bytes() + peaks().host_activation_bytes; }
  /// Returns the memory of the process: the reserved peak plus limit.overhead_bytes().
  int64_t total_bytes(const StepEstimate& estimate) const {
    return estimate.peaks.reserved_bytes + limit.overhead_bytes();
  }
  /// Returns the memory of training steps.
  int64_t training_bytes() const { return peaks().reserved_bytes + limit.overhead_bytes(); }
  /// Returns the memory of the whole run: of training steps or evaluations, whichever is higher. An
  /// evaluation counts up to the limit, since it splits batches that exceed the limit, and drops
  /// samples that do so alone.
  int64_t total_bytes() const;
  /// Returns the content of `plan --json` and plan.json.
  nlohmann::ordered_json to_json() const;
};

/// Returns the plan with the lowest predicted step time among those that fit, for a GPU or a host.
///
/// StepConfigs are dry-run without a memory limit: on a virtual GPU that reports the target's size, or
/// on LibTorch's meta device for a host. If the reserved peak stays below the limit, a device of that
/// size makes the same allocations.
///
/// Micro-batch sizes divide a rank's share of the global batch. As few blocks are recomputed as
/// fit, in increasing order of time per saved byte. The search:
/// 1. Short dry runs of one or two samples (probes) measure the cost of a sample and of a block. On a
///    host, where dry runs are cheap, the largest micro-batch without recomputation is tried first.
/// 2. A linear model predicts the best StepConfig from the probes. It is dry-run in full: on a GPU
///    four steps of changing sizes. This repeats until a StepConfig fits, but neither one recomputed
///    block less nor the next larger micro-batch does.
/// 3. If nothing fits, the StepConfig with the lowest memory is dry-run. If it fits, smaller vision
///    passes and loss chunks are tried in increasing order of their cost; the first that fits is
///    the plan.
/// 4. Otherwise the StepConfig with the lowest memory is the plan, `fits` is false, and suggestions
///    are dry-run; the smallest change comes first.
///
/// The time of a step on a host is not predicted. There, fewer recomputed blocks are faster, and for
/// the same number of them larger micro-batches.
///
/// Throws UserError: kDoesNotFit if the host has too little memory for job.offload, kUsage if the global batch is not a
/// multiple of the ranks or a fixed micro-batch size does not divide a rank's share, the exceptions of build_model(),
/// and for a host c10::Error if an operation does not support the meta device.
Plan make_plan(const PlanRequest& request);

/// Plans evaluations during the training of `plan` with `step_config`, while the training state stays
/// in memory. Keeps their peak below that of training where possible, so that the allocator's pool does
/// not grow. `request` has the samples and batch sizes. Throws the exceptions of plan_evaluation().
EvaluationPlan plan_evaluation_in_training(const Plan& plan, const StepConfig& step_config, EvaluationRequest request);

/// Returns {"language_blocks", "selective_language_blocks", "vision_blocks"}.
nlohmann::ordered_json make_recompute_blocks_json(const models::RecomputeBlockCounts& blocks);

}  // namespace vlmtrain::planner

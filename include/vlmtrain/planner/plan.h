#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/memory/trace.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/split_plan.h"
#include "vlmtrain/planner/target_gpu.h"
#include "vlmtrain/planner/workload.h"

namespace vlmtrain::planner {

/// What a person has fixed; the rest is for the planner.
struct StepConstraints {
  std::optional<int64_t> micro_batch_size;
  RecomputeOption recompute;
  std::optional<int64_t> vision_tiles_per_pass;
  std::optional<int64_t> loss_chunk_rows;
  bool expandable_segments = true;
};

/// Tells packs which micro-batch is fixed.
inline void apply_constraints(const StepConstraints& constraints, Workload& workload) {
  if (workload.packed) workload.packed->fixed_micro_batch_size = constraints.micro_batch_size.value_or(0);
}

/// One way to do a step, and what it takes.
struct StepEstimate {
  StepConfig step_config;
  StepPeaks peaks;
  double step_seconds = 0;       ///< predicted (planner/cost_recorder.h)
  double tokens_per_second = 0;  ///< of all ranks, with the worst samples
  bool fits = false;
  bool from_dry_run = false;  ///< peaks are a rehearsal's; else they are interpolated between rehearsals
};

/// What a usual step takes with the chosen plan, rehearsed.
struct AverageStep {
  std::vector<SampleGroup> samples;  ///< of a rank, each kind once
  StepPeaks peaks;
  double step_seconds = 0;        ///< predicted
  double tokens_per_second = 0;   ///< of all ranks
  double samples_per_second = 0;  ///< of all ranks
};

/// A remedy, with what it leads to.
struct Suggestion {
  /// `key=value` or a flag with its value, each of which can be put behind the command that was planned; several only
  /// help together. Empty where nothing can be typed.
  std::vector<std::string> arguments;
  std::string note;  ///< what they do, and what is needed then
  bool makes_it_fit = false;
  int64_t total_bytes = 0;  ///< that are needed at least with it; 0: not rehearsed

  /// Both on one line.
  std::string text() const;
};

/// What a rank needs for its part of a drawn step, rehearsed with the chosen plan from an empty cache.
struct RankStep {
  int64_t rank = 0;
  int64_t sampled_step = 0;  ///< place in Workload::drawn: of that rank's parts the one with the most tokens
  StepPeaks peaks;
};

/// How long the planner took, and for what.
struct PlanningEffort {
  double seconds = 0;
  int64_t num_dry_runs = 0;
  double dry_run_seconds = 0;
};

struct Plan {
  std::string model;  ///< as the user named it
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  /// Of the worst step, in equal micro-batches. Where nothing fits: what needs least of all that is not fixed.
  StepEstimate best;
  /// How each step is cut for its own samples; nothing where all are cut as the worst.
  std::optional<SplitPlan> split = std::nullopt;
  DryRunDetail detail;
  StepCosts costs;  ///< of the rehearsed step, which may have fewer micro-batches
  MemoryLimit limit;
  Workload workload;
  SampleBatch worst;                             ///< of the workload's candidates, with the chosen plan
  std::optional<AverageStep> average;            ///< where the workload says what is usual
  std::optional<Communication> communication{};  ///< of several ranks
  std::vector<RankStep> rank_steps{};  ///< of several ranks with drawn steps, by rank; of many ranks the 64 with most
  StepConstraints constraints;
  TargetGpu target;
  std::vector<StepEstimate> alternatives;  ///< by micro-batch, then by blocks recomputed
  std::vector<Suggestion> suggestions;
  PlanningEffort effort;

  int64_t accumulation_steps() const { return workload.samples_per_rank() / best.step_config.micro_batch_size; }
  /// What is taken beside PyTorch's allocator: context and communication.
  int64_t overhead_bytes() const { return limit.context_bytes + limit.communication_bytes; }
  /// Over the worst step, and those that are cut for their own samples.
  StepPeaks peaks() const;
  /// That and what the allocator reserves.
  int64_t total_bytes(const StepEstimate& estimate) const { return estimate.peaks.reserved_bytes + overhead_bytes(); }
  int64_t total_bytes() const { return peaks().reserved_bytes + overhead_bytes(); }
  /// `plan --json` and plan.json, as design.md fixes it and more.
  nlohmann::ordered_json to_json() const;
};

/// The samples of a request once one of their limits is lower.
struct LimitedSamples {
  Workload workload;
  int64_t num_dropped = 0;  ///< samples that the limit makes unusable
  int64_t num_samples = 0;  ///< of so many; 0: hypothetical ones
};

/// A number in the configuration, or behind a flag of `vlmtrain plan`, that makes samples smaller where it is lower:
/// the pixels of a picture, the frames of a video, the length of a sample.
struct SampleLimit {
  std::string argument_format;  ///< what is typed, with {} for the number: "data.image_max_pixels={}"
  int64_t current = 0;          ///< the least number that changes nothing
  /// The least that makes sense; found when it is asked for, since that may take measuring.
  std::function<int64_t()> find_min;
  int64_t multiple = 1;     ///< numbers to propose are multiples of it
  std::string description;  ///< "smaller pictures"
  /// The samples with this number; nothing where it is none that can be set. `all_samples`: exactly; else from those
  /// that are the largest without it, which is faster. Throws as measuring did.
  std::function<std::optional<LimitedSamples>(int64_t limit, bool all_samples)> measure;
};

/// What the command that asks for a plan is told to change, in its own words.
struct FlagSyntax {
  std::string gpu;                             ///< "--gpu {}" or "--gpu-gb {}"; empty: it has the card that it has
  bool gpu_by_size = false;                    ///< in gigabytes; else a name of the table
  std::string lora_argument = "lora.rank={}";  ///< for LoRA of `lora_rank`
  int64_t lora_rank = 16;
};

struct PlanRequest {
  std::string model;  ///< as the user named it
  Job job;
  bool chooses_sharding = false;  ///< of several ranks: the least predicted step time that fits, not job.sharding
  TargetGpu target;
  MemoryMode mode = MemoryMode::kBalanced;
  std::optional<double> limit_gigabytes;
  Workload workload;
  StepConstraints constraints;
  std::vector<SampleLimit> sample_limits = {};  ///< the least change first
  FlagSyntax flags = {};
  bool with_timeline = false;
  bool with_suggestions = true;  ///< false: nobody asks what would help where nothing fits, which takes longest
  bool with_split = true;        ///< false: steps are cut otherwise, as by a table that is there already
};

/// The plan with the least predicted step time among those that fit, each tried on a virtual card that says it is as
/// large as the target and has no limit: where the reserved peak stays below the limit, a card of that size does the
/// same, allocation by allocation.
///
/// Micro-batches are divisors of a rank's share of the global batch. Blocks are recomputed one by one, first those
/// whose recomputation costs least time for the bytes that it saves, as few as fit. Four short rehearsals tell what a
/// sample and a block take; from them the search guesses, and then rehearses its guess in full (four steps of changing
/// sizes), until a guess fits and neither one block less nor the next larger micro-batch does. Where nothing fits, what
/// needs least of all that a person could choose is rehearsed. If that fits, ever fewer vision tiles a pass and ever
/// smaller loss chunks are tried up to it; else `fits` is false, it is the plan, and the suggestions say what would
/// help: each is rehearsed, those that change least come first.
///
/// Throws UserError: kUsage where the global batch is no multiple of the ranks or a fixed micro-batch does not divide a
/// rank's share; whatever building the model throws.
Plan make_plan(const PlanRequest& request);

}  // namespace vlmtrain::planner

#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/drawn_steps.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/planner/cut_plan.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/target_gpu.h"

namespace vlmtrain::planner {

/// Samples that may be together in a global batch.
struct SampleBatch {
  /// The largest first; at least one. Where there are fewer than a global batch, the last stands for the rest.
  std::vector<data::SampleShape> shapes;
  std::string first_sample_id;  ///< of the first sample; empty where the samples are hypothetical
};

/// How many samples a step has whose global batch counts packs.
struct PackedSamples {
  double samples_per_pack = 1;         ///< on average
  int64_t fixed_micro_batch_size = 0;  ///< that is fixed; 0: none
};

/// What the samples are that a plan has to hold.
struct Workload {
  /// One of these is the worst global batch: the samples with the most tokens, with the most tiles, with the most label
  /// tokens. Which one, rehearsals tell.
  std::vector<SampleBatch> candidates;
  int64_t global_batch_size = 16;  ///< of all ranks: samples, or packs
  int64_t world_size = 1;
  int64_t nodes = 1;                                   ///< machines with as many ranks each
  double network_gbit = 100;                           ///< 10⁹ bits a second from one of them to another
  std::optional<PackedSamples> packed = std::nullopt;  ///< where global_batch_size counts packs
  /// A rank's samples of a usual step, in order, of which a plan says what they take; empty: only the worst is known.
  std::vector<data::SampleShape> average{};
  /// The samples of some steps, by rank; empty where all are like the worst.
  std::vector<data::ShapesByRank> sampled_steps = {};

  /// Of a step. Of packs a number near their average that divides into micro-batches of the size that is fixed, or else
  /// of many sizes.
  int64_t samples_per_rank() const;
};

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

}  // namespace vlmtrain::planner

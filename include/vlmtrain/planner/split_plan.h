#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/planner/memory_cost_table.h"

namespace vlmtrain::planner {

/// The peak memory of a step.
struct StepPeaks {
  int64_t allocated_bytes = 0;        ///< peak of live tensors
  int64_t reserved_bytes = 0;         ///< peak of the allocator's reserved memory; on the CPU with malloc's free blocks
  int64_t host_activation_bytes = 0;  ///< inputs of recomputed blocks in page-locked host memory, also of earlier steps
};

/// The table by which a run splits each step into micro-batches, with statistics of the sampled
/// steps (Workload::sampled_steps).
struct SplitPlan {
  MemoryCostTable table;
  int64_t num_sampled_steps = 0;
  double mean_micro_batches_per_step = 0;  ///< over the sampled steps
  int64_t max_micro_batches_per_step = 0;  ///< over the sampled steps
  int64_t min_micro_batches_per_step = 0;  ///< over the sampled steps
  double step_seconds = 0;                 ///< predicted, mean over the dry-run steps; 0 on the CPU
  double samples_per_second = 0;           ///< predicted, of one rank; 0 on the CPU
  StepPeaks peaks = {};                    ///< maximum over the dry-run steps, which include the largest samples
  int64_t num_dry_run_steps = 0;           ///< sampled steps that were dry-run
  int64_t num_measured_micro_batches = 0;  ///< dry-run micro-batches that the table is fitted to

  /// Returns the object `split` of plan.json.
  nlohmann::ordered_json to_json() const;
};

/// Splits the samples of a step into few micro-batches, each of which fits `table`. The number is
/// not guaranteed to be the minimum.
///
/// Takes the best result of first-fit and best-fit decreasing by each size, searches briefly for
/// fewer micro-batches if a lower bound allows them, and then balances their memory. A unit of
/// `constraint` that does not fit alone becomes a micro-batch of its own. The largest micro-batches
/// come first, and samples keep their order within a micro-batch. If micro-batches of equal numbers
/// of samples, in order, are as few and need no more memory, they are returned instead.
///
/// Deterministic: depends only on its arguments, and gives the same result on every machine.
/// REQUIRES: `shapes` is not empty and is a multiple of constraint.unit_size; constraint.groups is
/// empty or has one entry per shape.
engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& constraint = {});

}  // namespace vlmtrain::planner

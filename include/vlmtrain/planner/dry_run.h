#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/shape.h"
#include "vlmtrain/engine/evaluation.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/fused_loss.h"
#include "vlmtrain/planner/communication.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// What a plan decides: none of it changes loss or gradients beyond rounding.
struct StepConfig {
  int64_t micro_batch_size = 1;
  models::RecomputeBlocks recompute;
  int64_t vision_tiles_per_pass = 0;  ///< 0: all of a micro-batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;
  bool expandable_segments = true;
  bool copies_ahead = true;  ///< engine::StepLayout's
  /// By which each step is cut for its own samples (planner/step_cut.h); nothing: into micro-batches of as many.
  std::optional<MemoryCostTable> memory_costs = std::nullopt;

  bool operator==(const StepConfig&) const = default;
};

/// What they are for a step of samples of these shapes, which are cut as `rule` allows.
engine::StepLayout make_step_layout(const StepConfig& step_config, std::span<const data::SampleShape> shapes,
                                    const engine::SplitConstraint& rule = {});

/// `count` samples of one shape.
struct SampleGroup {
  data::SampleShape shape;
  int64_t count = 1;
};

/// Adds a sample behind those of `groups`.
void add_sample(std::vector<SampleGroup>& groups, data::SampleShape shape);

/// Neighbours of one shape are one group.
std::vector<SampleGroup> group_samples(std::span<const data::SampleShape> shapes);

/// One after another.
std::vector<data::SampleShape> expand_samples(const std::vector<SampleGroup>& groups);

/// A batch of an evaluation.
struct EvaluationBatch {
  std::vector<SampleGroup> samples;
  engine::EvaluationLayout layout;
  int64_t max_new_tokens = 0;  ///< of an answer to each sample; 0: no answers
};

struct DryRunRequest {
  StepConfig step_config;
  std::vector<std::vector<SampleGroup>> steps;       ///< the samples of each step, in order; cut into micro-batches
  std::vector<engine::MicroBatchSplit> splits = {};  ///< of each step; empty: as make_step_layout() cuts them
  bool empty_cache_each_step = false;                ///< each step, so that its peak does not depend on those before it
  bool with_costs = false;                           ///< count operations and predict times, from the last step
  bool with_step_seconds = false;                    ///< predict the time of each step
  bool with_detail = false;                          ///< trace allocations: the peak by component
  bool with_timeline = false;                        ///< and the course of the last step
  std::vector<EvaluationBatch> evaluations = {};     ///< after the steps, each from an empty cache
  bool with_training = true;                         ///< false: there is a model and no optimizer; no steps then
};

/// What a step's work amounts to, and how long a card is predicted to take for it (planner/cost_recorder.h).
struct Cost {
  double matmul_flops = 0;  ///< of matrix products; a multiplication and an addition count as two
  double attention_flops = 0;
  double bytes_moved = 0;  ///< read and written by all other kernels
  int64_t kernel_launches = 0;
  double seconds = 0;

  Cost& operator+=(const Cost& other);
};

struct StepCosts {
  Cost total;
  Cost vision_blocks_forward;       ///< what recomputing all of the tower's blocks costs once more
  Cost language_blocks_forward;     ///< the same of the language model
  Cost language_attention_forward;  ///< of that, what is attention
  Cost optimizer;
};

struct StepPeaks {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
};

/// Allocated bytes by component at one moment of the last step.
struct TimelinePoint {
  memory::ComponentBytes by_component{};
  int64_t reserved_bytes = 0;
  memory::MemoryTag tag;
  bool backward = false;
};

struct DryRunDetail {
  memory::Peak peak;  ///< over all steps
  int64_t vision_blocks = 0;
  int64_t language_blocks = 0;
  int64_t num_parameters = 0;            ///< parameters
  int64_t num_trainable_parameters = 0;  ///< of these
  std::vector<TimelinePoint> timeline;   ///< empty unless it was asked for
};

struct DryRunResult {
  bool out_of_memory = false;
  std::vector<StepPeaks> steps;           ///< those that were done
  std::vector<double> step_seconds = {};  ///< of these, where they were asked for
  int64_t allocation_retries = 0;
  StepCollectives reductions = {};  ///< of the last step
  std::optional<StepCosts> costs;
  std::optional<DryRunDetail> detail;
  double seconds = 0;  ///< that the rehearsal took
  std::vector<StepPeaks> evaluations = {};

  StepPeaks peaks() const;  ///< over all steps
};

/// Runs optimizer steps of a job through the real engine on a virtual card. Each rehearsal starts from an empty
/// allocator, as a fresh process does. Throws UserError if the job cannot be built; running out of memory is an answer,
/// not an error. REQUIRES: this process is on a virtual card.
DryRunResult dry_run(const Job& job, const DryRunRequest& request, at::Device device);

}  // namespace vlmtrain::planner

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/generation/evaluation.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/losses.h"
#include "vlmtrain/planner/communication.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// The settings of a step that a plan chooses. They change loss and gradients by rounding only.
struct StepConfig {
  int64_t micro_batch_size = 1;
  models::RecomputeBlocks recompute;
  int64_t vision_tiles_per_pass = 0;  ///< 0: all tiles of a micro-batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;
  bool expandable_segments = true;
  bool copies_ahead = true;  ///< engine::StepLayout::copies_ahead
  /// Splits each step by the memory of its samples (split_by_memory()); nullopt: into micro-batches of
  /// micro_batch_size samples.
  std::optional<MemoryCostTable> memory_costs = std::nullopt;

  bool operator==(const StepConfig&) const = default;
};

/// Returns the layout of a step of these samples, split within the constraint `rule`.
engine::StepLayout make_step_layout(const StepConfig& step_config, std::span<const data::SampleShape> shapes,
                                    const engine::SplitConstraint& rule = {});

/// Consecutive samples of one shape.
struct SampleGroup {
  data::SampleShape shape;
  int64_t count = 1;
};

/// Appends a sample to `groups`.
void add_sample(std::vector<SampleGroup>& groups, data::SampleShape shape);

/// Groups neighbors of equal shape.
std::vector<SampleGroup> group_samples(std::span<const data::SampleShape> shapes);

/// Returns the samples of the groups one by one.
std::vector<data::SampleShape> expand_samples(const std::vector<SampleGroup>& groups);

/// A batch of an evaluation.
struct EvaluationBatch {
  std::vector<SampleGroup> samples;
  engine::EvaluationLayout layout;
  int64_t max_new_tokens = 0;  ///< of each answer; 0: no answers
};

/// The input of dry_run().
struct DryRunRequest {
  StepConfig step_config;
  std::vector<std::vector<SampleGroup>> steps;       ///< the samples of each step, in order
  std::vector<engine::MicroBatchSplit> splits = {};  ///< of each step; empty: those of make_step_layout()
  bool empty_cache_each_step = false;                ///< makes the peak of a step independent of earlier steps
  bool with_costs = false;                           ///< DryRunResult::costs, of the last step
  bool with_step_seconds = false;                    ///< DryRunResult::step_seconds
  bool with_detail = false;                          ///< DryRunResult::detail, which traces allocations
  bool with_timeline = false;                        ///< DryRunDetail::timeline, of the last step
  std::vector<EvaluationBatch> evaluations = {};     ///< after the steps, each from an empty cache
  bool with_training = true;                         ///< false: no optimizer; REQUIRES: no steps
};

/// The work of a step, and its predicted duration (src/planner/dry_run/cost_recorder.h).
struct Cost {
  double matmul_flops = 0;  ///< a multiplication and an addition count as two
  double attention_flops = 0;
  double bytes_moved = 0;  ///< read and written by all other kernels
  int64_t kernel_launches = 0;
  double seconds = 0;

  Cost& operator+=(const Cost& other);
};

/// The cost of a step and of those parts that recomputation or sharding change.
struct StepCosts {
  Cost total;
  Cost vision_blocks_forward;       ///< added once more if all blocks of the vision tower are recomputed
  Cost language_blocks_forward;     ///< added once more if all blocks of the language model are recomputed
  Cost language_attention_forward;  ///< the part of language_blocks_forward that is attention
  Cost optimizer;
};

/// The memory at one allocator event of the last step.
struct TimelinePoint {
  memory::ComponentBytes by_component{};  ///< allocated bytes
  int64_t reserved_bytes = 0;
  memory::MemoryTag tag;
  bool backward = false;
};

/// The peak by component, and the sizes of the model.
struct DryRunDetail {
  memory::Peak peak;  ///< over all steps
  int64_t vision_blocks = 0;
  int64_t language_blocks = 0;
  int64_t num_parameters = 0;
  int64_t num_trainable_parameters = 0;
  std::vector<TimelinePoint> timeline;  ///< empty without DryRunRequest::with_timeline
};

/// The result of dry_run().
struct DryRunResult {
  bool out_of_memory = false;
  std::vector<StepPeaks> steps;           ///< of the completed steps
  std::vector<double> step_seconds = {};  ///< predicted, of the completed steps
  int64_t allocation_retries = 0;
  StepCollectives collectives = {};  ///< of the last step
  std::optional<StepCosts> costs;
  std::optional<DryRunDetail> detail;
  double seconds = 0;  ///< duration of the dry run
  std::vector<StepPeaks> evaluations = {};

  /// Returns the maximum over all steps.
  StepPeaks peaks() const;
};

/// Runs optimizer steps of a job in the training engine on a virtual GPU, starting with an empty
/// allocator like a new process. Running out of memory is a result, not an error. Throws UserError if the
/// job's model cannot be built. REQUIRES: is_on_virtual_gpu().
DryRunResult dry_run(const Job& job, const DryRunRequest& request, at::Device device);

}  // namespace vlmtrain::planner

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/models/model_settings.h"
#include "vlmtrain/planner/communication.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// The settings of a step that the planner chooses. They affect loss and gradients only by
/// rounding.
struct StepConfig {
  int64_t micro_batch_size = 1;
  models::RecomputeBlockCounts recompute;
  int64_t vision_tiles_per_pass = 0;                        ///< 0: all tiles of a micro-batch
  int64_t loss_chunk_rows = engine::kDefaultLossChunkRows;  ///< rows of logits per chunk
  bool expandable_segments = true;                          ///< expandable segments of PyTorch's caching allocator
  bool copies_ahead = true;                                 ///< engine::StepLayout::copies_ahead
  /// If set, each step is split by the memory of its samples (split_by_memory()), and
  /// micro_batch_size is ignored.
  std::optional<MemoryCostTable> memory_cost_table = std::nullopt;

  bool operator==(const StepConfig&) const = default;
};

/// Returns the layout of a step whose samples have `shapes`, split within `constraint`.
engine::StepLayout make_step_layout(const StepConfig& step_config, std::span<const data::SampleShape> shapes,
                                    const engine::SplitConstraint& constraint = {});

/// Consecutive samples of the same shape.
struct SampleGroup {
  data::SampleShape shape;
  int64_t count = 1;
};

/// Appends a sample to `groups`: extends the last group if it has this shape, or else adds a group.
void add_sample(std::vector<SampleGroup>& groups, data::SampleShape shape);

/// Returns the samples in the same order, with runs of equal shapes as one group each.
std::vector<SampleGroup> group_samples(std::span<const data::SampleShape> shapes);

/// Returns the first `count` samples, count > 0. The last one is repeated as needed. REQUIRES:
/// `shapes` is not empty.
std::vector<SampleGroup> take_samples(std::span<const data::SampleShape> shapes, int64_t count);

/// Returns the shape of every sample, in order. The inverse of group_samples().
std::vector<data::SampleShape> expand_groups(const std::vector<SampleGroup>& groups);

/// A batch of an evaluation.
struct EvaluationBatch {
  std::vector<SampleGroup> samples;
  engine::EvaluationLayout layout;
  int64_t max_new_tokens = 0;  ///< generated tokens per sample; 0: no generation
};

/// The input of dry_run().
struct DryRunRequest {
  StepConfig step_config;
  std::vector<std::vector<SampleGroup>> steps;                   ///< the samples of each step, in order
  std::vector<engine::MicroBatchSplit> micro_batch_splits = {};  ///< one per step; empty: as make_step_layout() splits
  bool empty_cache_each_step = false;                    ///< makes the peak of a step independent of earlier steps
  bool with_costs = false;                               ///< set DryRunResult::costs
  bool with_step_seconds = false;                        ///< fill DryRunResult::step_seconds
  bool with_detail = false;                              ///< set DryRunResult::detail; traces allocations
  bool with_timeline = false;                            ///< like with_detail, with DryRunDetail::timeline
  std::vector<EvaluationBatch> evaluation_batches = {};  ///< run after the steps, each from an empty cache
  bool with_training = true;                             ///< false: no optimizer; `steps` must be empty
};

/// The work of some operations, and its predicted duration (src/planner/dry_run/cost_recorder.h).
struct OperationCost {
  double matmul_flops = 0;             ///< a multiply-add counts as two
  double misaligned_matmul_flops = 0;  ///< of matmuls with a matrix whose columns are not aligned to 16 bytes
  double attention_flops = 0;          ///< floating-point operations of attention kernels
  double bytes_moved = 0;              ///< bytes that all other kernels read and write
  int64_t num_kernel_launches = 0;
  double seconds = 0;  ///< predicted duration on the physical GPU

  OperationCost& operator+=(const OperationCost& other);
};

/// The time of a micro-batch on the link to host memory.
struct LinkSeconds {
  double copies = 0;    ///< copies that overlap with the passes
  double in_place = 0;  ///< reads and writes by kernels, which wait for them

  /// Returns the duration of micro-batches whose passes take `passes_seconds` in all.
  double compute_total(double passes_seconds, double micro_batches) const {
    return std::max(passes_seconds, micro_batches * copies) + micro_batches * in_place;
  }
};

/// The cost of a step, and of the parts that recomputation or sharding change. Full recomputation
/// of the blocks of a tower adds the cost of their forward pass to the step.
struct StepCosts {
  OperationCost total;                       ///< its seconds include waits for the link to host memory
  double passes_seconds = 0;                 ///< of all forward and backward passes, without these waits
  LinkSeconds link;                          ///< of each micro-batch
  OperationCost vision_blocks_forward;       ///< forward pass of the blocks of the vision tower and mask encoder
  OperationCost language_blocks_forward;     ///< forward pass of the blocks of the language model
  OperationCost language_attention_forward;  ///< the attention kernels in language_blocks_forward
  OperationCost optimizer;
};

/// The memory at one allocator event of the last step.
struct MemoryTimelinePoint {
  memory::ComponentBytes bytes_by_component{};  ///< allocated bytes after the event
  int64_t reserved_bytes = 0;                   ///< bytes that the allocator has reserved after the event
  memory::MemoryTag tag;                        ///< component and block that caused the event
  bool is_backward = false;                     ///< the event is in the backward pass
};

/// The peak by component, and the sizes of the model.
struct DryRunDetail {
  memory::MemoryPeak peak;          ///< over all steps
  int64_t num_vision_blocks = 0;    ///< of the vision tower
  int64_t num_language_blocks = 0;  ///< of the language model
  int64_t num_parameters = 0;
  int64_t num_trainable_parameters = 0;
  int64_t host_table_bytes = 0;               ///< per-layer embeddings in page-locked host memory
  int64_t host_state_bytes = 0;               ///< optimizer state in page-locked host memory
  int64_t host_block_bytes = 0;               ///< weights of blocks in page-locked host memory
  int64_t host_gradient_bytes = 0;            ///< sums of gradients in page-locked host memory
  std::vector<MemoryTimelinePoint> timeline;  ///< of the last step; empty without DryRunRequest::with_timeline

  /// Returns the page-locked host memory, without StepPeaks::host_activation_bytes.
  int64_t host_bytes() const { return host_table_bytes + host_state_bytes + host_block_bytes + host_gradient_bytes; }
};

/// The result of dry_run().
struct DryRunResult {
  bool ran_out_of_memory = false;         ///< the virtual GPU's memory was exhausted; later fields are incomplete
  std::vector<StepPeaks> steps;           ///< peaks of the completed steps
  std::vector<double> step_seconds = {};  ///< predicted duration of each completed step
  int64_t num_allocation_retries = 0;     ///< times that the allocator emptied its cache to satisfy a request
  StepCollectives collectives = {};       ///< collectives of the last step
  std::optional<StepCosts> costs;         ///< costs of the last step
  std::optional<DryRunDetail> detail;
  double seconds = 0;                            ///< duration of the dry run itself
  std::vector<StepPeaks> evaluation_peaks = {};  ///< of each evaluation batch

  /// Returns the maximum over all steps, evaluations excluded.
  StepPeaks compute_max_peaks() const;
};

/// Runs optimizer steps of a job in the training engine on a virtual GPU, starting with an empty
/// allocator like a new process. Exhausted GPU memory is reported in the result. Throws UserError
/// if the job's model cannot be built or the host's memory is exhausted. `device` is the virtual
/// GPU. REQUIRES: is_on_virtual_gpu().
DryRunResult dry_run(const Job& job, const DryRunRequest& request, at::Device device);

}  // namespace vlmtrain::planner

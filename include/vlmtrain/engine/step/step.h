#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/gradients/rank_sync.h"
#include "vlmtrain/engine/gradients/sharded_blocks.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/activation_offloader.h"

namespace vlmtrain::engine {

/// Scalars that are copied from the device to the host asynchronously. The copy is queued after the
/// work that computes them, and the host waits only in read(), usually one step later.
class AsyncScalarCopy {
 public:
  /// Queues the copy of `scalars`, fp32 [scalars].
  explicit AsyncScalarCopy(const at::Tensor& scalars);
  /// Waits for the copy and returns the values. May be called several times.
  std::vector<double> read();

 private:
  at::Tensor host_scalars_;  // fp32 [scalars], pinned for a GPU
  std::optional<c10::Event> copy_done_event_;
};

/// A model with the persistent training state on its device. Not thread-safe.
struct TrainingState {
  /// Allocates the state. `num_gradient_groups` is Objective::num_gradient_groups(). `shard` is
  /// this rank's shard of moments and masters, and of sharded blocks. REQUIRES: the weights are
  /// loaded, and components are frozen (models::freeze_parts); `trained_model` outlives this
  /// object. Throws the exceptions of Optimizer and memory::HostArena::allocate().
  TrainingState(models::VisionLanguageModel& trained_model, const OptimizerSettings& settings,
                int64_t num_gradient_groups = 1, Shard shard = {}, const HostMemorySettings& host_memory = {})
      : model(trained_model),
        gradient_buckets(trained_model.parameters(), num_gradient_groups, shard,
                         find_undivided_parameters(trained_model.parameters(), settings), host_memory.offload),
        gradient_reducer(gradient_buckets),
        optimizer_sync(shard.covers_all() ? nullptr
                                          : std::make_unique<ShardedOptimizerSync>(trained_model.parameters(),
                                                                                   gradient_buckets.layout())),
        sharded_blocks(trained_model.parameters().unshards_blocks()
                           ? std::make_unique<ShardedBlocks>(trained_model.parameters(), gradient_reducer)
                           : nullptr),
        optimizer(trained_model.parameters(), gradient_buckets, settings, host_memory.offload) {
    if (host_memory.offloads_activations) {
      activation_offloader = std::make_unique<nn::ActivationOffloader>(trained_model.parameters().options().device(),
                                                                       host_memory.max_activation_bytes);
      trained_model.parameters().set_activation_offloader(activation_offloader.get());
    }
  }
  ~TrainingState() { model.parameters().set_activation_offloader(nullptr); }
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Makes the following steps reduce gradients over the ranks of `consensus`, which must outlive
  /// this object. REQUIRES: called before the first step if there are several ranks.
  void set_consensus(const Consensus& consensus);

  models::VisionLanguageModel& model;
  GradientBuckets gradient_buckets;
  GradientReducer gradient_reducer;
  std::unique_ptr<ShardedOptimizerSync> optimizer_sync;           ///< null unless optimizer state is sharded
  std::unique_ptr<ShardedBlocks> sharded_blocks;                  ///< null unless blocks are sharded or in host memory
  std::unique_ptr<nn::ActivationOffloader> activation_offloader;  ///< null unless inputs of blocks are in host memory
  Optimizer optimizer;
};

/// The result of a step. Tensors are on the device, so reading them synchronizes. The tensors from
/// `grad_norm` to `objective_scalars` are undefined before TrainingStep::prepare().
struct StepResult {
  at::Tensor
      loss;  ///< fp32 scalar: loss of the global batch (after TrainingStep::prepare()), divided by the normalizers
  at::Tensor grad_norm;   ///< fp32 scalar, before clipping
  at::Tensor skipped;     ///< fp32 scalar: 1 if loss or norm is not finite and no weight changed; else 0
  at::Tensor loss_scale;  ///< fp32 scalar; undefined without a loss scale
  /// fp32 [4 + n] for AsyncScalarCopy: the four scalars above, with 0 for an undefined loss_scale,
  /// followed by objective_scalars. Allocated before any weight changes, because a later allocation
  /// could fail.
  at::Tensor scalars;
  /// Number of elements of `scalars` before those of the objective.
  static constexpr size_t kNumCommonScalars = 4;
  at::Tensor objective_scalars;         ///< StepLoss::compute_metric_scalars()
  std::vector<TaskCounts> task_counts;  ///< Objective::compute_task_counts()
  // Counts of this rank; after TrainingStep::prepare(), of all ranks, except for num_micro_batches.
  int64_t tokens = 0;  ///< including image tokens
  int64_t label_tokens = 0;
  double label_weight = 0;  ///< sum of the weights of the label tokens
  int64_t num_media = 0;
  int64_t num_volumes = 0;  ///< volumes among the media
  int64_t samples = 0;
  int64_t num_micro_batches = 0;  ///< of this rank
};

/// An out-of-memory error of device or host during a step. No weight has changed; gradients of the
/// step may exist.
class StepOutOfMemory : public std::runtime_error {
 public:
  StepOutOfMemory(int64_t micro_batch, const memory::OutOfMemory& out_of_memory)
      : std::runtime_error(out_of_memory.reason), micro_batch_index_(micro_batch), memory_kind_(out_of_memory.kind) {}
  /// Returns the index of the failed micro-batch; −1 if the optimizer failed.
  int64_t micro_batch_index() const { return micro_batch_index_; }
  /// Returns the kind of memory that ran out.
  memory::MemoryKind memory_kind() const { return memory_kind_; }

 private:
  int64_t micro_batch_index_;
  memory::MemoryKind memory_kind_;
};

/// An out-of-memory error after weights have changed. Optimizer::apply_update() allocates no tensors,
/// but the driver may need memory to load a kernel. The weights are a mixture of two steps, so the
/// step must not be retried, and the weights must not be saved.
class PartialUpdateError : public UserError {
 public:
  explicit PartialUpdateError(const memory::OutOfMemory& out_of_memory);
};

/// The samples of a step and their objective.
struct StepInput {
  const Objective& objective;
  std::span<const data::Sample> samples;  ///< at least one
  LossNormalizers normalizers;            ///< sums over the samples of all ranks
};

/// Returns the input of a step on a single rank.
StepInput make_step_input(const Objective& objective, std::span<const data::Sample> samples);

/// The result of the forward and backward passes of a step.
struct GradientAccumulationResult {
  StepResult result;
  std::unique_ptr<StepLoss> loss;  ///< has the sums of this rank
};

/// Runs forward and backward passes over all samples with the split and the other settings of
/// `layout`. The model keeps the layout's recomputation and vision tiles per pass. Gradients are
/// those of the loss times `loss_scale`, an fp32 scalar on the device; 1 if undefined. They are
/// added to the micro-batch's group of `buckets`, or, if `buckets` is null, to Tensor::grad() of
/// the parameters. If `reducer` is not null, it reduces complete buckets during the last
/// micro-batch. Throws StepOutOfMemory.
GradientAccumulationResult accumulate(models::VisionLanguageModel& model, const StepInput& input,
                                      const StepLayout& layout, const at::Tensor& loss_scale = {},
                                      GradientBuckets* buckets = nullptr, GradientReducer* reducer = nullptr);

/// One attempt at an optimizer step, in three phases that are called once and in order. Until
/// apply_update(), only gradients and random state change. After a failure, call
/// GradientBuckets::reset() and make another attempt with a new object.
class TrainingStep {
 public:
  /// All arguments must outlive this object.
  TrainingStep(TrainingState& training, const StepInput& input, const Consensus& consensus)
      : training_state_(training), input_(input), consensus_(consensus) {}

  /// Runs the passes and reduces gradients over the ranks. After StepOutOfMemory, the sums in the
  /// buckets are invalid.
  void accumulate(const StepLayout& layout);
  /// Reduces the remaining sums over the ranks and allocates all memory of the update. REQUIRES:
  /// accumulate() succeeded on all ranks. Throws StepOutOfMemory.
  void prepare();
  /// Updates the weights. REQUIRES: prepare() succeeded on all ranks. Throws PartialUpdateError.
  StepResult apply_update(const LearningRates& rates);

 private:
  TrainingState& training_state_;
  const StepInput& input_;
  const Consensus& consensus_;
  GradientAccumulationResult accumulation_result_;
  OptimizerUpdate optimizer_update_;
};

/// Runs all phases of a step on a single rank. Throws StepOutOfMemory and PartialUpdateError.
StepResult run_optimizer_step(TrainingState& training, const StepInput& input, const StepLayout& layout,
                              const LearningRates& rates);

}  // namespace vlmtrain::engine

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/objective.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/engine/training.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// What an optimizer step did. The tensors are on the device: reading them waits for it.
struct StepResult {
  at::Tensor loss;  ///< fp32 scalar of the global batch, as the objective normalises it
  /// Of an optimizer step; undefined without one.
  at::Tensor grad_norm;   ///< fp32 scalar, before clipping
  at::Tensor skipped;     ///< fp32 scalar: 1 where loss or norm is not finite, so that nothing was moved; else 0
  at::Tensor loss_scale;  ///< fp32 scalar, what the loss was multiplied by; undefined without a loss scale
  /// All of these in one tensor, for engine::AsyncScalars: fp32 [4], loss_scale 0 where there is none, followed by the
  /// objective's own. Made before the first weight was changed, so that nothing can fail after that.
  at::Tensor scalars;
  /// How many numbers stand before the objective's.
  static constexpr size_t kNumScalars = 4;
  at::Tensor objective_scalars;   ///< StepLoss::scalars()
  std::vector<TaskCounts> tasks;  ///< Objective::counts()
  int64_t tokens = 0;             ///< this and the following from Step::prepare() on of all processes
  int64_t label_tokens = 0;
  int64_t num_media = 0;
  int64_t num_volumes = 0;  ///< of the images
  int64_t samples = 0;
  int64_t micro_batches = 0;  ///< of this process
};

/// Memory, of the device or of the host, did not suffice for a step. No weight has changed, gradients of the step may
/// be there.
class StepOutOfMemory : public std::runtime_error {
 public:
  StepOutOfMemory(int64_t micro_batch, const memory::OutOfMemory& out_of_memory)
      : std::runtime_error(out_of_memory.reason), micro_batch_(micro_batch), memory_kind_(out_of_memory.kind) {}
  /// The one that failed; -1: all had been done and the optimizer failed.
  int64_t micro_batch() const { return micro_batch_; }
  memory::MemoryKind memory_kind() const { return memory_kind_; }

 private:
  int64_t micro_batch_;
  memory::MemoryKind memory_kind_;
};

/// Memory ran out after the first weight had changed, which takes a driver that loads a kernel then: AdamW::apply
/// allocates nothing. The weights are those of no step; neither doing it again nor saving them is right.
class PartialUpdateError : public UserError {
 public:
  explicit PartialUpdateError(const memory::OutOfMemory& out_of_memory);
};

/// Samples of a step and what they are trained by.
struct StepInput {
  const Objective& objective;
  std::span<const data::Sample> samples;  ///< at least one
  Normalizers normalizers;                ///< of the samples of all processes
};

/// The input of a step of one process.
StepInput make_step_input(const Objective& objective, std::span<const data::Sample> samples);

/// The passes of a step: its loss and what was counted, and what the objective has summed up.
struct AccumulationResult {
  StepResult result;
  std::unique_ptr<StepLoss> loss;
};

/// Forward and backward passes over the samples, cut and recomputed as `layout` says, which the model then keeps. The
/// gradients are those of the loss times `loss_scale`, an fp32 scalar on the device (undefined: 1); they add up in the
/// sums' group of each micro-batch, or, without sums, in the parameters' own. Throws StepOutOfMemory.
AccumulationResult accumulate(models::VisionLanguageModel& model, const StepInput& input, const StepLayout& layout,
                              const at::Tensor& loss_scale = {}, GradientBuckets* sums = nullptr);

/// One attempt at an optimizer step, phase by phase. Until apply() nothing has changed but gradients and random state:
/// an attempt that fails is followed by GradientBuckets::drop() and another one.
class Step {
 public:
  /// All must outlive it.
  Step(Training& training, const StepInput& input, const Consensus& consensus)
      : training_(training), input_(input), consensus_(consensus) {}

  /// The passes, and the sums of all processes' gradients. Throws StepOutOfMemory, in whose case the sums are no
  /// gradients.
  void accumulate(const StepLayout& layout);
  /// Adds up what else there is over all processes, and allocates all that the update takes. REQUIRES: accumulate()
  /// went well in all of them. Throws StepOutOfMemory.
  void prepare();
  /// Moves the weights. REQUIRES: prepare() went well in all processes. Throws PartialUpdateError.
  StepResult apply(const LearningRates& rates);

 private:
  Training& training_;
  const StepInput& input_;
  const Consensus& consensus_;
  AccumulationResult accumulation_;
  OptimizerUpdate update_;
};

/// All phases of a step of one process. Throws StepOutOfMemory, PartialUpdateError.
StepResult optimizer_step(Training& training, const StepInput& input, const StepLayout& layout,
                          const LearningRates& rates);

}  // namespace vlmtrain::engine

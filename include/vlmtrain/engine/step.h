#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// What an optimizer step did. The tensors are on the device: reading them waits for it.
struct StepResult {
  at::Tensor loss;  ///< fp32 scalar, mean over the label tokens of the global batch, with the weights of their tasks
  /// Of an optimizer step; undefined without one.
  at::Tensor grad_norm;   ///< fp32 scalar, before clipping
  at::Tensor skipped;     ///< fp32 scalar: 1 where loss or norm is not finite, so that nothing was moved; else 0
  at::Tensor loss_scale;  ///< fp32 scalar, what the loss was multiplied by; undefined without a loss scale
  /// All of these in one tensor, for engine::AsyncScalars: fp32 [4], loss_scale 0 where there is none, followed by
  /// task_numbers. Made before the first weight was changed, so that nothing can fail after that.
  at::Tensor numbers;
  /// How many numbers stand before those of the tasks.
  static constexpr size_t kNumbers = 4;
  /// By task, where TaskSettings::apart(); else empty and undefined.
  std::vector<TaskCounts> tasks;
  at::Tensor task_numbers;  ///< fp32; task_results() reads them
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  int64_t images = 0;
  int64_t samples = 0;
  int64_t micro_batches = 0;
};

struct StepSettings {
  at::Device device = at::kCPU;
  int64_t micro_batch_size = 1;
  int64_t loss_chunk_rows = 1024;           ///< rows of logits that exist at a time
  std::vector<int64_t> micro_batches = {};  ///< as StepLayout::micro_batches; empty: all of micro_batch_size
  TaskSettings tasks = {};
};

/// Memory, of the device or of the host, did not suffice for a step. No weight has changed, gradients of the step may
/// be there.
class StepOutOfMemory : public std::runtime_error {
 public:
  StepOutOfMemory(int64_t micro_batch, const memory::Shortage& shortage)
      : std::runtime_error(shortage.reason), micro_batch_(micro_batch), scarce_(shortage.of) {}
  /// The one that failed; -1: all had been done and the optimizer failed.
  int64_t micro_batch() const { return micro_batch_; }
  memory::Scarce scarce() const { return scarce_; }

 private:
  int64_t micro_batch_;
  memory::Scarce scarce_;
};

/// Memory ran out after the first weight had changed, which takes a driver that loads a kernel then: AdamW::apply
/// allocates nothing. The weights are those of no step; neither doing it again nor saving them is right.
class UpdateHalfDone : public UserError {
 public:
  explicit UpdateHalfDone(const memory::Shortage& shortage);
};

/// Forward and backward passes over `samples` in micro-batches. The loss of each is divided by the label tokens of all,
/// so that the gradients add up to those of one large batch, wherever it is cut.
/// The gradients are those of the loss times `loss_scale`, an fp32 scalar on the device; undefined: 1.
/// Throws StepOutOfMemory. REQUIRES: at least one sample; each has a label token. Gradients of tasks are not kept apart
/// here.
StepResult accumulate_gradients(const models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                const StepSettings& settings, const at::Tensor& loss_scale = {});

/// accumulate_gradients, then the optimizer's step. Throws StepOutOfMemory.
/// `optimizer` is that of `sums`.
StepResult optimizer_step(const models::VisionLanguageModel& model, GradientSums& sums, AdamW& optimizer,
                          std::span<const data::Sample> samples, const LearningRates& rates,
                          const StepSettings& settings);

/// Asked once the gradients are there.
using RatesSource = std::function<LearningRates()>;

/// The same as `layout` has it, which the model then keeps.
StepResult optimizer_step(models::VisionLanguageModel& model, GradientSums& sums, AdamW& optimizer,
                          std::span<const data::Sample> samples, const RatesSource& rates, const StepLayout& layout,
                          at::Device device, const TaskSettings& tasks = {});

/// Loss of a micro-batch that is already on the device, divided by `normalizer` label tokens.
at::Tensor loss_of(const models::VisionLanguageModel& model, const data::MicroBatch& batch, double normalizer,
                   int64_t loss_chunk_rows);

}  // namespace vlmtrain::engine

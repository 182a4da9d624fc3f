#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

/// The sums of a step by task, on the device.
class PerTaskSums {
 public:
  /// `features`: size of the hidden states that enter the loss. REQUIRES: settings.is_multi_task().
  PerTaskSums(const TaskSettings& settings, int64_t features, at::Device device);

  /// Returns the arguments of the loss of a micro-batch. `label_tasks` int64 [labels]: the task of
  /// each label.
  nn::PerTaskLoss make_loss_args(const at::Tensor& label_tasks) const;

  /// Returns the tensors to be summed over ranks before scalars().
  std::vector<at::Tensor> sums() const;

  /// Returns fp32 [tasks · 2], or [tasks · 3] with gradient norms, read by make_task_results().
  at::Tensor scalars() const;

 private:
  at::Tensor tasks_;            // int64 [tasks, 1]: 0, 1, 2 …
  at::Tensor weights_;          // fp32 [tasks]; undefined: all 1
  at::Tensor sums_;             // see nn::PerTaskLoss
  at::Tensor scale_gradients_;  // see nn::PerTaskLoss
};

/// The cross-entropy of the label tokens of one step, with task weights and sums.
class TextLoss {
 public:
  /// `label_tokens`: those of the global batch, > 0. Allocates the memory of all sums. `model` must
  /// outlive it.
  TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
           const TaskSettings& tasks);

  /// Returns the loss of a micro-batch, an fp32 scalar with its graph. `hidden` [labels, hidden]:
  /// states at batch.label_positions.
  at::Tensor forward(const at::Tensor& hidden, const data::MicroBatch& batch);

  /// As in StepLoss.
  std::vector<at::Tensor> sums() const { return tasks_ ? tasks_->sums() : std::vector<at::Tensor>{}; }
  at::Tensor scalars() const { return tasks_ ? tasks_->scalars() : at::Tensor(); }

 private:
  const models::VisionLanguageModel& model_;
  double label_tokens_;
  int64_t chunk_rows_;
  std::optional<PerTaskSums> tasks_;
};

}  // namespace vlmtrain::engine

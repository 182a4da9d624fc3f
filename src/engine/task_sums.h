#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

/// What a step sums up by task, on the device.
class PerTaskSums {
 public:
  /// `features`: of the hidden states that enter the loss. REQUIRES: settings.is_multi_task().
  PerTaskSums(const TaskSettings& settings, int64_t features, at::Device device);

  /// For the loss of a micro-batch whose labels are of these tasks, int64 [labels].
  nn::PerTaskLoss make_loss_args(const at::Tensor& label_tasks) const;

  /// What adds up over processes: what scalars() is made of.
  std::vector<at::Tensor> sums() const;

  /// fp32 [tasks · 2], or [tasks · 3] with gradient norms; make_task_results() reads them.
  at::Tensor scalars() const;

 private:
  at::Tensor tasks_;            // int64 [tasks, 1]: 0, 1, 2 …
  at::Tensor weights_;          // fp32 [tasks]; undefined: all 1
  at::Tensor sums_;             // as nn::PerTaskLoss
  at::Tensor scale_gradients_;  // as nn::PerTaskLoss
};

}  // namespace vlmtrain::engine

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/task_sums.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// Cross-entropy of the label tokens of one step, with their tasks' weights and sums.
class TextLoss {
 public:
  /// `label_tokens`: of the global batch, > 0. The memory of all sums is allocated here.
  TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
           const TaskSettings& tasks);

  /// `hidden` [labels, hidden] at batch.label_positions → fp32 scalar with its graph.
  at::Tensor forward(const at::Tensor& hidden, const data::MicroBatch& batch);

  /// As StepLoss's.
  std::vector<at::Tensor> sums() const { return tasks_ ? tasks_->sums() : std::vector<at::Tensor>{}; }
  at::Tensor scalars() const { return tasks_ ? tasks_->scalars() : at::Tensor(); }

 private:
  const models::VisionLanguageModel& model_;
  double label_tokens_;
  int64_t chunk_rows_;
  std::optional<PerTaskSums> tasks_;
};

}  // namespace vlmtrain::engine

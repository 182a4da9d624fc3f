#include "engine/text_loss.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

TextLoss::TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                   const TaskSettings& tasks)
    : model_(model), label_tokens_(label_tokens), chunk_rows_(chunk_rows) {
  VLMTRAIN_CHECK(label_tokens > 0, "a step without a label token");
  const at::Tensor& weight = model.output_weight();
  if (tasks.is_multi_task()) tasks_.emplace(tasks, weight.size(1), weight.device());
}

at::Tensor TextLoss::forward(const at::Tensor& hidden, const data::MicroBatch& batch) {
  const memory::ComponentScope loss(memory::Component::kLoss);
  if (!tasks_) {
    return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_);
  }
  return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_,
                                  tasks_->make_loss_args(batch.label_tasks));
}

}  // namespace vlmtrain::engine

#include "train/step/step.h"

#include <utility>

#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::train {

PendingStepReport::PendingStepReport(const PlannedStep& step, const CompletedStep& completed_step,
                                     std::shared_ptr<const engine::Objective> objective, at::Device device)
    : result_scalars_(completed_step.result.scalars),
      has_loss_scale_(completed_step.result.loss_scale.defined()),
      task_counts_(completed_step.result.task_counts),
      objective_(std::move(objective)) {
  const auto& samples = step.batch.samples;
  for (const int64_t position : completed_step.layout.split.order) {
    report.sample_ids.push_back(samples.at(static_cast<size_t>(position)).id);
  }
  report::StepMetrics& metrics = report.metrics;
  metrics.step = step.step;
  metrics.tokens = completed_step.result.tokens;
  metrics.label_tokens = completed_step.result.label_tokens;
  metrics.label_weight =
      report::make_label_weight(completed_step.result.label_tokens, completed_step.result.label_weight);
  metrics.num_media = completed_step.result.num_media;
  metrics.num_volumes = completed_step.result.num_volumes;
  metrics.samples = completed_step.result.samples;
  metrics.num_micro_batches = completed_step.result.num_micro_batches;
  metrics.micro_batch_sizes = completed_step.layout.split.sizes;
  metrics.num_look_ahead_splits = step.plan.layout.count_extra_micro_batches(step.layout);
  metrics.num_oom_splits = completed_step.num_failed_attempts;
  metrics.data_wait_seconds = step.data_wait_seconds;
  metrics.allocated_peak_bytes = completed_step.memory.allocated_peak_bytes;
  metrics.reserved_peak_bytes = completed_step.memory.reserved_peak_bytes;
  metrics.allocated_bytes = completed_step.memory.allocated_bytes;
  metrics.reserved_bytes = completed_step.memory.reserved_bytes;
  if (!device.is_cpu()) metrics.device_free_bytes = memory::get_free_device_bytes(device);
  metrics.host_bytes = memory::get_resident_bytes();
  metrics.host_peak_bytes = memory::get_peak_resident_bytes();
}

void PendingStepReport::complete_report() {
  const auto values = result_scalars_.read();  // in the order of engine::StepResult::scalars
  report.metrics.loss = values[0];
  report.metrics.grad_norm = values[1];
  report.metrics.skipped = values[2] != 0;
  if (has_loss_scale_) report.metrics.loss_scale = values[3];
  const auto metrics =
      objective_->compute_metrics(std::span(values).subspan(engine::StepResult::kNumCommonScalars), task_counts_);
  tasks = metrics.tasks;
  if (const auto& masks = metrics.masks) {
    report.metrics.loss_components =
        report::LossComponents{.text = masks->text, .bce = masks->bce, .dice = masks->dice};
  }
}

}  // namespace vlmtrain::train

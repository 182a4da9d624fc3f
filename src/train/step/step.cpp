#include "train/step/step.h"

#include <utility>

#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::train {

PendingReport::PendingReport(const PlannedStep& step, const CompletedStep& completed,
                             std::shared_ptr<const engine::Objective> objective, at::Device device)
    : scalars_(completed.result.scalars),
      has_loss_scale_(completed.result.loss_scale.defined()),
      task_counts_(completed.result.tasks),
      objective_(std::move(objective)) {
  const auto& samples = step.batch.samples;
  for (const int64_t position : completed.layout.split.order) {
    report.sample_ids.push_back(samples.at(static_cast<size_t>(position)).id);
  }
  report::StepMetrics& metrics = report.metrics;
  metrics.step = step.step;
  metrics.tokens = completed.result.tokens;
  metrics.label_tokens = completed.result.label_tokens;
  metrics.num_media = completed.result.num_media;
  metrics.num_volumes = completed.result.num_volumes;
  metrics.samples = completed.result.samples;
  metrics.micro_batches = completed.result.micro_batches;
  metrics.micro_batch_sizes = completed.layout.split.sizes;
  metrics.forecast_splits = step.plan.layout.count_extra_splits(step.layout);
  metrics.oom_splits = completed.failed_attempts;
  metrics.data_wait_seconds = step.data_wait_seconds;
  metrics.allocated_peak_bytes = completed.memory.allocated_peak_bytes;
  metrics.reserved_peak_bytes = completed.memory.reserved_peak_bytes;
  metrics.allocated_bytes = completed.memory.allocated_bytes;
  metrics.reserved_bytes = completed.memory.reserved_bytes;
  if (!device.is_cpu()) metrics.device_free_bytes = memory::get_free_device_bytes(device);
  metrics.host_bytes = memory::get_resident_bytes();
  metrics.host_peak_bytes = memory::get_peak_resident_bytes();
}

void PendingReport::complete() {
  const auto values = scalars_.read();  // in the order of engine::StepResult::scalars
  report.metrics.loss = values[0];
  report.metrics.grad_norm = values[1];
  report.metrics.skipped = values[2] != 0;
  if (has_loss_scale_) report.metrics.loss_scale = values[3];
  const auto metrics =
      objective_->compute_metrics(std::span(values).subspan(engine::StepResult::kNumScalars), task_counts_);
  tasks = metrics.tasks;
  if (const auto& masks = metrics.masks) {
    report.metrics.loss_components =
        report::LossComponents{.text = masks->text, .bce = masks->bce, .dice = masks->dice};
  }
}

}  // namespace vlmtrain::train

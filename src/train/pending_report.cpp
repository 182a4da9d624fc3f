#include "train/pending_report.h"

#include <utility>

#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::train {

PendingReport::PendingReport(const PlannedStep& step, const DoneStep& done,
                             std::shared_ptr<const engine::Objective> objective, at::Device device)
    : numbers_(done.result.numbers),
      has_loss_scale_(done.result.loss_scale.defined()),
      task_counts_(done.result.tasks),
      objective_(std::move(objective)) {
  const auto& samples = step.batch.samples;
  for (const int64_t place : done.layout.cut.order) {
    report.sample_ids.push_back(samples.at(static_cast<size_t>(place)).id);
  }
  report::StepMetrics& metrics = report.metrics;
  metrics.step = step.step;
  metrics.tokens = done.result.tokens;
  metrics.label_tokens = done.result.label_tokens;
  metrics.images = done.result.images;
  metrics.volumes = done.result.volumes;
  metrics.samples = done.result.samples;
  metrics.micro_batches = done.result.micro_batches;
  metrics.micro_batch_sizes = done.layout.cut.sizes;
  metrics.foreseen_splits = step.plan.layout.splits_against(step.layout);
  metrics.oom_splits = done.failed_attempts;
  metrics.data_wait_seconds = step.data_wait_seconds;
  metrics.allocated_peak_bytes = done.memory.allocated_peak_bytes;
  metrics.reserved_peak_bytes = done.memory.reserved_peak_bytes;
  metrics.allocated_bytes = done.memory.allocated_bytes;
  metrics.reserved_bytes = done.memory.reserved_bytes;
  if (!device.is_cpu()) metrics.device_free_bytes = memory::free_bytes(device);
  metrics.host_bytes = memory::host_bytes();
  metrics.host_peak_bytes = memory::host_peak_bytes();
}

void PendingReport::read() {
  const auto values = numbers_.read();
  report.metrics.loss = values[0];
  report.metrics.grad_norm = values[1];
  report.metrics.skipped = values[2] != 0;
  if (has_loss_scale_) report.metrics.loss_scale = values[3];
  const auto metrics = objective_->metrics(std::span(values).subspan(engine::StepResult::kNumbers), task_counts_);
  tasks = metrics.tasks;
  if (const auto& masks = metrics.masks) {
    report.metrics.loss_parts = report::LossParts{.text = masks->text, .bce = masks->bce, .dice = masks->dice};
  }
}

}  // namespace vlmtrain::train

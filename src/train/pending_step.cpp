#include "train/pending_step.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

PendingStep::PendingStep(const engine::StepResult& result, const data::GlobalBatch& batch, at::Device device)
    : scalars_(result.numbers) {
  for (const auto& sample : batch.samples) {
    sample_ids += sample_ids.empty() ? sample.id : ", " + sample.id;
  }
  metrics.tokens = result.tokens;
  metrics.label_tokens = result.label_tokens;
  metrics.images = result.images;
  metrics.samples = result.samples;
  metrics.micro_batches = result.micro_batches;
  metrics.data_wait_seconds = batch.wait_seconds;
  const auto memory = memory::device_memory(device);
  metrics.allocated_peak_bytes = memory.allocated_peak_bytes;
  metrics.reserved_peak_bytes = memory.reserved_peak_bytes;
  metrics.host_peak_bytes = memory::host_peak_bytes();
}

void PendingStep::read() {
  const auto values = scalars_.read();
  metrics.loss = values[0];
  metrics.grad_norm = values[1];
}

std::string sample_ids_line(int64_t step, const data::GlobalBatch& batch) {
  auto ids = nlohmann::ordered_json::array();
  for (const auto& sample : batch.samples) ids.push_back(sample.id);
  return nlohmann::ordered_json{{"step", step}, {"ids", ids}}.dump();
}

}  // namespace vlmtrain::train

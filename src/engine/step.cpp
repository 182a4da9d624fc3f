#include "vlmtrain/engine/step.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

namespace {

data::MicroBatch on_device(const data::MicroBatch& batch, at::Device device) {
  const memory::InComponent input(memory::Component::kInput);
  return batch.to(device);
}

at::Tensor loss_from(const at::Tensor& hidden, const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                     double normalizer, int64_t loss_chunk_rows) {
  const memory::InComponent loss(memory::Component::kLoss);
  return nn::linear_cross_entropy(hidden, model.output_weight(), batch.labels, normalizer, loss_chunk_rows);
}

}  // namespace

at::Tensor loss_of(const models::VisionLanguageModel& model, const data::MicroBatch& batch, double normalizer,
                   int64_t loss_chunk_rows) {
  return loss_from(model.forward(batch, batch.label_positions), model, batch, normalizer, loss_chunk_rows);
}

at::Tensor loss_of(const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                   const at::Tensor& image_features, double normalizer, int64_t loss_chunk_rows) {
  const at::Tensor hidden = model.hidden_states(batch, image_features, batch.label_positions, /*cache=*/nullptr);
  return loss_from(hidden, model, batch, normalizer, loss_chunk_rows);
}

StepResult accumulate_gradients(const models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                const StepSettings& settings) {
  StepResult result;
  for (const auto& sample : samples) result.label_tokens += sample.label_tokens();
  VLMTRAIN_CHECK(result.label_tokens > 0, "a step of {} samples without a label token", samples.size());
  result.loss = at::zeros({}, at::TensorOptions(at::kFloat).device(settings.device));

  const auto micro_batch_size = static_cast<size_t>(settings.micro_batch_size);
  for (size_t first = 0; first < samples.size(); first += micro_batch_size) {
    const size_t count = std::min(micro_batch_size, samples.size() - first);
    const auto batch = on_device(data::collate(samples.subspan(first, count)), settings.device);
    const at::Tensor loss = loss_of(model, batch, static_cast<double>(result.label_tokens), settings.loss_chunk_rows);
    // Nothing is trained that a micro-batch of text reaches where only the vision tower or its adapters are.
    if (loss.requires_grad()) loss.backward();
    result.loss += loss.detach();
    result.tokens += batch.tokens();
    result.images += batch.images;
    result.samples += batch.samples;
    result.micro_batches += 1;
  }
  return result;
}

StepResult optimizer_step(const models::VisionLanguageModel& model, AdamW& optimizer,
                          std::span<const data::Sample> samples, const LearningRates& rates,
                          const StepSettings& settings) {
  StepResult result = accumulate_gradients(model, samples, settings);
  result.grad_norm = optimizer.step(rates);
  return result;
}

}  // namespace vlmtrain::engine

#include "vlmtrain/engine/step.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

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

std::vector<int64_t> micro_batches_of(const StepSettings& settings, int64_t samples) {
  return settings.micro_batches.empty() ? equal_micro_batches(samples, settings.micro_batch_size)
                                        : settings.micro_batches;
}

/// Without the trace and the table of segments that follow.
std::string first_line(const c10::OutOfMemoryError& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

void add_micro_batch(StepResult& result, const models::VisionLanguageModel& model,
                     std::span<const data::Sample> samples, const StepSettings& settings,
                     const at::Tensor& loss_scale) {
  const auto batch = on_device(data::collate(samples), settings.device);
  const at::Tensor loss = loss_of(model, batch, static_cast<double>(result.label_tokens), settings.loss_chunk_rows);
  // Nothing is trained that a micro-batch of text reaches where only the vision tower or its adapters are.
  if (loss.requires_grad()) loss.backward(loss_scale);
  result.loss += loss.detach();
  result.tokens += batch.tokens();
  result.images += batch.images;
  result.samples += batch.samples;
  result.micro_batches += 1;
}

at::Tensor numbers_of(const StepResult& result) {
  const at::Tensor scale = result.loss_scale.defined() ? result.loss_scale : at::zeros_like(result.loss);
  return at::stack({result.loss, result.grad_norm, result.skipped, scale.reshape({})});
}

StepResult optimizer_step(const models::VisionLanguageModel& model, AdamW& optimizer,
                          std::span<const data::Sample> samples, const RatesSource& rates,
                          const StepSettings& settings) {
  StepResult result = accumulate_gradients(model, samples, settings, optimizer.loss_scale());
  const LearningRates chosen = rates();
  try {
    const PreparedUpdate update = optimizer.prepare(result.loss);
    result.grad_norm = update.grad_norm;
    result.skipped = update.skipped;
    result.loss_scale = update.loss_scale;
    result.numbers = numbers_of(result);
    optimizer.apply(update, chosen);
  } catch (const c10::OutOfMemoryError& error) {
    throw StepOutOfMemory(-1, first_line(error));
  }
  return result;
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
                                const StepSettings& settings, const at::Tensor& loss_scale) {
  StepResult result;
  for (const auto& sample : samples) result.label_tokens += sample.label_tokens();
  VLMTRAIN_CHECK(result.label_tokens > 0, "a step of {} samples without a label token", samples.size());
  try {
    result.loss = at::zeros({}, at::TensorOptions(at::kFloat).device(settings.device));
    size_t first = 0;
    for (const int64_t size : micro_batches_of(settings, std::ssize(samples))) {
      add_micro_batch(result, model, samples.subspan(first, static_cast<size_t>(size)), settings, loss_scale);
      first += static_cast<size_t>(size);
    }
    VLMTRAIN_CHECK(first == samples.size(), "micro-batches of {} samples for {}", first, samples.size());
  } catch (const c10::OutOfMemoryError& error) {
    throw StepOutOfMemory(result.micro_batches, first_line(error));
  }
  return result;
}

StepResult optimizer_step(const models::VisionLanguageModel& model, AdamW& optimizer,
                          std::span<const data::Sample> samples, const LearningRates& rates,
                          const StepSettings& settings) {
  return optimizer_step(
      model, optimizer, samples, [&rates] { return rates; }, settings);
}

StepResult optimizer_step(models::VisionLanguageModel& model, AdamW& optimizer, std::span<const data::Sample> samples,
                          const RatesSource& rates, const StepLayout& layout, at::Device device) {
  model.set_recompute(layout.recompute);
  model.set_vision_tiles_per_pass(layout.vision_tiles_per_pass);
  const StepSettings settings{
      .device = device, .loss_chunk_rows = layout.loss_chunk_rows, .micro_batches = layout.micro_batches};
  return optimizer_step(model, optimizer, samples, rates, settings);
}

}  // namespace vlmtrain::engine

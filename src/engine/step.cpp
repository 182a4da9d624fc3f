#include "vlmtrain/engine/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "engine/backward_thread.h"
#include "engine/task_sums.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/pcgrad.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

namespace {

data::MicroBatch on_device(const data::MicroBatch& batch, at::Device device) {
  const memory::InComponent input(memory::Component::kInput);
  return batch.to(device);
}

at::Tensor loss_from(const at::Tensor& hidden, const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                     double normalizer, int64_t loss_chunk_rows, const TaskSums* tasks = nullptr) {
  const memory::InComponent loss(memory::Component::kLoss);
  if (tasks != nullptr) {
    return nn::linear_cross_entropy(hidden, model.output_weight(), batch.labels, normalizer, loss_chunk_rows,
                                    tasks->of(batch.label_tasks));
  }
  return nn::linear_cross_entropy(hidden, model.output_weight(), batch.labels, normalizer, loss_chunk_rows);
}

std::vector<int64_t> micro_batches_of(const StepSettings& settings, int64_t samples) {
  return settings.micro_batches.empty() ? equal_micro_batches(samples, settings.micro_batch_size)
                                        : settings.micro_batches;
}

/// Throws StepOutOfMemory if `error`, which is being handled, says so; else goes on with it.
[[noreturn]] void rethrow(const std::exception& error, int64_t micro_batch) {
  const auto shortage = memory::shortage_in(error);
  if (!shortage) throw;
  throw StepOutOfMemory(micro_batch, *shortage);
}

/// Forward and backward passes of a step, one micro-batch after another.
class Accumulation {
 public:
  /// `sums`: of the step's gradients; null where they stay with the parameters.
  Accumulation(const models::VisionLanguageModel& model, const StepSettings& settings, const at::Tensor& loss_scale,
               GradientSums* sums)
      : model_(model), settings_(settings), loss_scale_(loss_scale), sums_(sums) {}

  StepResult over(std::span<const data::Sample> samples) {
    for (const auto& sample : samples) result_.label_tokens += sample.label_tokens();
    VLMTRAIN_CHECK(result_.label_tokens > 0, "a step of {} samples without a label token", samples.size());
    if (settings_.tasks.apart()) result_.tasks = count_by_task(samples, settings_.tasks.count);
    try {
      result_.loss = at::zeros({}, at::TensorOptions(at::kFloat).device(settings_.device));
      if (settings_.tasks.apart()) tasks_.emplace(settings_.tasks, model_.output_weight().size(1), settings_.device);
      size_t first = 0;
      for (const int64_t size : micro_batches_of(settings_, std::ssize(samples))) {
        if (sums_ != nullptr && first + static_cast<size_t>(size) == samples.size()) sums_->begin_last_pass();
        add(samples.subspan(first, static_cast<size_t>(size)));
        first += static_cast<size_t>(size);
      }
      VLMTRAIN_CHECK(first == samples.size(), "micro-batches of {} samples for {}", first, samples.size());
      if (sums_ != nullptr) sums_->finish();
      if (tasks_) result_.task_numbers = tasks_->numbers();
    } catch (const std::exception& error) {
      wait_for_backward_thread(settings_.device);
      rethrow(error, result_.micro_batches);
    }
    return std::move(result_);
  }

 private:
  void add(std::span<const data::Sample> samples) {
    if (sums_ != nullptr && settings_.tasks.resolve_conflicts) sums_->receive_for(only_task_of(samples));
    const auto batch = on_device(data::collate(samples, settings_.tasks.apart()), settings_.device);
    const at::Tensor loss =
        loss_from(model_.forward(batch, {.positions = batch.label_positions}).hidden, model_, batch,
                  static_cast<double>(result_.label_tokens), settings_.loss_chunk_rows, tasks_ ? &*tasks_ : nullptr);
    // Nothing is trained that a micro-batch of text reaches where only the vision tower or its adapters are.
    if (loss.requires_grad()) loss.backward(loss_scale_);
    result_.loss += loss.detach();
    result_.tokens += batch.tokens();
    result_.images += batch.images;
    result_.samples += batch.samples;
    result_.micro_batches += 1;
  }

  static int64_t only_task_of(std::span<const data::Sample> samples) {
    const int64_t task = samples.front().task_number;
    const bool is_only =
        std::ranges::all_of(samples, [task](const auto& sample) { return sample.task_number == task; });
    VLMTRAIN_CHECK(is_only, "a micro-batch of several tasks, whose gradients cannot be told apart");
    return task;
  }

  const models::VisionLanguageModel& model_;
  const StepSettings& settings_;
  const at::Tensor& loss_scale_;
  GradientSums* sums_;
  std::optional<TaskSums> tasks_;
  StepResult result_;
};

at::Tensor numbers_of(const StepResult& result) {
  const at::Tensor scale = result.loss_scale.defined() ? result.loss_scale : at::zeros_like(result.loss);
  const at::Tensor numbers = at::stack({result.loss, result.grad_norm, result.skipped, scale.reshape({})});
  return result.task_numbers.defined() ? at::cat({numbers, result.task_numbers}) : numbers;
}

StepResult optimizer_step(const models::VisionLanguageModel& model, GradientSums& sums, AdamW& optimizer,
                          std::span<const data::Sample> samples, const RatesSource& rates,
                          const StepSettings& settings) {
  const at::Tensor loss_scale = optimizer.loss_scale();
  StepResult result = Accumulation(model, settings, loss_scale, &sums).over(samples);
  const LearningRates chosen = rates();
  PreparedUpdate update;
  try {
    if (settings.tasks.resolve_conflicts) resolve_conflicts(sums, settings.tasks.seed);
    update = optimizer.prepare(result.loss);
    result.grad_norm = update.grad_norm;
    result.skipped = update.skipped;
    result.loss_scale = update.loss_scale;
    result.numbers = numbers_of(result);
  } catch (const std::exception& error) {
    rethrow(error, -1);
  }
  try {
    optimizer.apply(update, chosen);
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    throw UpdateHalfDone(*shortage);
  }
  return result;
}

}  // namespace

UpdateHalfDone::UpdateHalfDone(const memory::Shortage& shortage)
    : UserError(
          ExitCode::kFailed,
          fmt::format("{} ran out while the weights were being changed: {}; start again, and the run goes on from "
                      "its last checkpoint; memory.mode=conservative leaves the driver more",
                      memory::name_of(shortage.of), shortage.reason)) {}

at::Tensor loss_of(const models::VisionLanguageModel& model, const data::MicroBatch& batch, double normalizer,
                   int64_t loss_chunk_rows) {
  return loss_from(model.forward(batch, {.positions = batch.label_positions}).hidden, model, batch, normalizer,
                   loss_chunk_rows);
}

StepResult accumulate_gradients(const models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                const StepSettings& settings, const at::Tensor& loss_scale) {
  return Accumulation(model, settings, loss_scale, /*sums=*/nullptr).over(samples);
}

StepResult optimizer_step(const models::VisionLanguageModel& model, GradientSums& sums, AdamW& optimizer,
                          std::span<const data::Sample> samples, const LearningRates& rates,
                          const StepSettings& settings) {
  return optimizer_step(
      model, sums, optimizer, samples, [&rates] { return rates; }, settings);
}

StepResult optimizer_step(models::VisionLanguageModel& model, GradientSums& sums, AdamW& optimizer,
                          std::span<const data::Sample> samples, const RatesSource& rates, const StepLayout& layout,
                          at::Device device, const TaskSettings& tasks) {
  model.set_recompute(layout.recompute);
  model.set_vision_tiles_per_pass(layout.vision_tiles_per_pass);
  const StepSettings settings{.device = device,
                              .loss_chunk_rows = layout.loss_chunk_rows,
                              .micro_batches = layout.micro_batches,
                              .tasks = tasks};
  return optimizer_step(model, sums, optimizer, samples, rates, settings);
}

}  // namespace vlmtrain::engine

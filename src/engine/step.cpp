#include "vlmtrain/engine/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "engine/backward_thread.h"
#include "engine/micro_batch_source.h"
#include "engine/pass.h"

namespace vlmtrain::engine {

namespace {

/// Throws StepOutOfMemory if `error`, which is being handled, says so; else goes on with it.
[[noreturn]] void rethrow(const std::exception& error, int64_t micro_batch) {
  const auto shortage = memory::shortage_in(error);
  if (!shortage) throw;
  throw StepOutOfMemory(micro_batch, *shortage);
}

/// Forward and backward passes of a step, one micro-batch after another.
class Accumulation {
 public:
  Accumulation(const models::VisionLanguageModel& model, const StepInput& input, const StepLayout& layout,
               const at::Tensor& loss_scale, GradientSums* sums)
      : model_(model),
        input_(input),
        layout_(layout),
        loss_scale_(loss_scale),
        sums_(sums),
        device_(model.output_weight().device()),
        source_(input, layout, device_),
        groups_(input.objective.gradient_groups() > 1 ? input.objective.cut_rule(input.samples).groups
                                                      : std::vector<int64_t>{}) {}

  Accumulated all() {
    VLMTRAIN_CHECK(layout_.cut.order.size() == input_.samples.size(), "a cut of {} samples for {}",
                   layout_.cut.order.size(), input_.samples.size());
    StepResult& result = done_.result;
    result.tasks = input_.objective.counts(input_.samples);
    try {
      result.loss = at::zeros({}, at::TensorOptions(at::kFloat).device(device_));
      done_.loss = input_.objective.begin(model_, input_.normalizers, layout_);
      const int64_t last = layout_.cut.micro_batches() - 1;
      for (int64_t i = 0; i <= last; ++i) {
        if (sums_ != nullptr && i == last) sums_->begin_last_pass();
        add(layout_.cut.micro_batch(i));
      }
    } catch (const std::exception& error) {
      wait_for_backward_thread(device_);
      if (memory::shortage_in(error)) model_.parameters().follow();
      rethrow(error, result.micro_batches);
    }
    model_.parameters().follow();
    return std::move(done_);
  }

 private:
  void add(std::span<const int64_t> places) {
    if (sums_ != nullptr && !groups_.empty()) sums_->receive_for(only_group_of(places));
    const auto batch = source_.next();
    StepResult& result = done_.result;
    const nn::PassShape shape{.vision_passes = model_.vision_passes_of(batch), .backward = true};
    in_pass(model_.parameters(), shape, [&] {
      const at::Tensor loss = done_.loss->of(batch);
      // Nothing is trained that a micro-batch of text reaches where only the vision tower or its adapters are.
      if (loss.requires_grad()) loss.backward(loss_scale_);
      result.loss += loss.detach();
    });
    result.tokens += batch.tokens();
    result.label_tokens += batch.label_tokens();
    result.images += batch.images;
    result.volumes += batch.volumes;
    result.samples += batch.samples;
    result.micro_batches += 1;
  }

  int64_t only_group_of(std::span<const int64_t> places) const {
    const auto group_of = [this](int64_t place) { return groups_.at(static_cast<size_t>(place)); };
    const int64_t group = group_of(places.front());
    const bool is_only = std::ranges::all_of(places, [&](int64_t place) { return group_of(place) == group; });
    VLMTRAIN_CHECK(is_only, "a micro-batch of several groups, whose gradients cannot be told apart");
    return group;
  }

  const models::VisionLanguageModel& model_;
  const StepInput& input_;
  const StepLayout& layout_;
  const at::Tensor& loss_scale_;
  GradientSums* sums_;
  at::Device device_;
  MicroBatchSource source_;
  std::vector<int64_t> groups_;  // of each sample; empty: gradients are summed together
  Accumulated done_;
};

/// Of all processes; micro-batches are each process's own.
void add_up_counts(StepResult& result, const Consensus& consensus) {
  std::vector<int64_t*> counts{&result.tokens, &result.label_tokens, &result.images, &result.volumes, &result.samples};
  for (auto& task : result.tasks) counts.insert(counts.end(), {&task.samples, &task.label_tokens});
  std::vector<double> sums;
  sums.reserve(counts.size());
  for (const int64_t* const count : counts) sums.push_back(static_cast<double>(*count));
  sums = consensus.sum(std::move(sums));
  for (size_t i = 0; i < counts.size(); ++i) *counts[i] = std::llround(sums[i]);
}

/// Where several groups of processes have the same parts: those of the others.
void add_up_copies(const GradientSums& sums, const Consensus& consensus) {
  if (sums.shard().is_all()) return;
  for (const auto& part : sums.parts_of_blocks()) consensus.add_up_copies(part);
  for (const auto& part : sums.parts_of_others()) consensus.add_up_copies(part);
  consensus.finish();
}

/// Of the sums, where each process has a part of them; else undefined.
at::Tensor norm_of_parts(const GradientSums& sums, const Consensus& consensus) {
  if (sums.shard().is_all()) return {};
  const at::Tensor square = sums.norm().square_();
  consensus.add_up_in_group(square);
  consensus.finish();
  return square.sqrt_();
}

at::Tensor numbers_of(const StepResult& result) {
  const at::Tensor scale = result.loss_scale.defined() ? result.loss_scale : at::zeros_like(result.loss);
  const at::Tensor numbers = at::stack({result.loss, result.grad_norm, result.skipped, scale.reshape({})});
  return result.objective_numbers.defined() ? at::cat({numbers, result.objective_numbers}) : numbers;
}

}  // namespace

UpdateHalfDone::UpdateHalfDone(const memory::Shortage& shortage)
    : UserError(
          ExitCode::kFailed,
          fmt::format("{} ran out while the weights were being changed: {}; start again, and the run goes on from "
                      "its last checkpoint; memory.mode=conservative leaves the driver more",
                      memory::name_of(shortage.of), shortage.reason)) {}

StepInput step_input(const Objective& objective, std::span<const data::Sample> samples) {
  return {.objective = objective, .samples = samples, .normalizers = objective.normalizers(samples)};
}

Accumulated accumulate(models::VisionLanguageModel& model, const StepInput& input, const StepLayout& layout,
                       const at::Tensor& loss_scale, GradientSums* sums) {
  model.set_recompute(layout.recompute);
  model.set_vision_tiles_per_pass(layout.vision_tiles_per_pass);
  return Accumulation(model, input, layout, loss_scale, sums).all();
}

void Step::accumulate(const StepLayout& layout) {
  // What others add up with has to come, of a process whose passes failed as well.
  const auto add_up = [this] {
    training_.sums.finish();
    consensus_.finish();
    add_up_copies(training_.sums, consensus_);
  };
  try {
    accumulated_ =
        engine::accumulate(training_.model, input_, layout, training_.optimizer.loss_scale(), &training_.sums);
  } catch (const StepOutOfMemory&) {
    add_up();
    throw;
  }
  add_up();
}

void Step::prepare() {
  StepResult& result = accumulated_.result;
  try {
    training_.sums.count_as_received(consensus_.together(training_.sums.received_places()));
    add_up_counts(result, consensus_);
    consensus_.add_up(result.loss);
    for (const auto& sum : accumulated_.loss->sums()) consensus_.add_up(sum);
    consensus_.finish();
    result.objective_numbers = accumulated_.loss->numbers();
    accumulated_.loss.reset();
    if (input_.objective.gradient_groups() > 1) input_.objective.combine(training_.sums);
    update_ = training_.optimizer.prepare(result.loss, norm_of_parts(training_.sums, consensus_));
    result.grad_norm = update_.grad_norm;
    result.skipped = update_.skipped;
    result.loss_scale = update_.loss_scale;
    result.numbers = numbers_of(result);
  } catch (const std::exception& error) {
    rethrow(error, -1);
  }
}

StepResult Step::apply(const LearningRates& rates) {
  try {
    training_.optimizer.apply(update_, rates);
    if (training_.weights) training_.weights->gather(consensus_);
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    throw UpdateHalfDone(*shortage);
  }
  return std::move(accumulated_.result);
}

StepResult optimizer_step(Training& training, const StepInput& input, const StepLayout& layout,
                          const LearningRates& rates) {
  const Consensus alone;
  Step step(training, input, alone);
  step.accumulate(layout);
  step.prepare();
  return step.apply(rates);
}

}  // namespace vlmtrain::engine

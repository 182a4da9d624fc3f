#include "vlmtrain/engine/step/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>

#include "engine/step/pass.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::engine {

AsyncScalarCopy::AsyncScalarCopy(const at::Tensor& scalars) {
  if (!scalars.is_cuda()) {
    host_scalars_ = scalars;
    return;
  }
  host_scalars_ = memory::make_pinned_tensor(scalars.sizes());
  host_scalars_.copy_(scalars, /*non_blocking=*/true);
  copy_done_event_.emplace(scalars.device().type());
  copy_done_event_->record(c10::impl::VirtualGuardImpl(scalars.device().type()).getStream(scalars.device()));
}

std::vector<double> AsyncScalarCopy::read() {
  if (copy_done_event_) copy_done_event_->synchronize();
  const float* const values = host_scalars_.const_data_ptr<float>();
  return {values, values + host_scalars_.numel()};
}

void TrainingState::set_consensus(const Consensus& consensus) {
  if (sharded_blocks) sharded_blocks->set_consensus(consensus);
  if (gradient_buckets.shard().covers_all()) {
    gradient_reducer.register_comm_hook(
        [&consensus](const at::Tensor& bucket) { consensus.all_reduce_sum_async(bucket); });
  } else {
    gradient_reducer.register_comm_hook(
        [&consensus](const at::Tensor& bucket) { consensus.reduce_scatter_async(bucket); },
        [&consensus] { consensus.wait_for_reductions(); });
  }
}

namespace {

/// Throws StepOutOfMemory if `error` is an out-of-memory error, else rethrows it. REQUIRES: called
/// from the handler of `error`.
[[noreturn]] void rethrow_out_of_memory(const std::exception& error, int64_t micro_batch) {
  const auto out_of_memory = memory::detect_out_of_memory(error);
  if (!out_of_memory) throw;
  throw StepOutOfMemory(micro_batch, *out_of_memory);
}

/// The forward and backward passes of a step, micro-batch by micro-batch. Used once.
class GradientAccumulation {
 public:
  GradientAccumulation(const models::VisionLanguageModel& model, const StepInput& input, const StepLayout& layout,
                       const at::Tensor& loss_scale, GradientBuckets* buckets, GradientReducer* reducer)
      : model_(model),
        input_(input),
        layout_(layout),
        loss_scale_(loss_scale),
        buckets_(buckets),
        reducer_(reducer),
        device_(model.output_weight().device()),
        source_(input, layout, device_),
        sample_group_indices_(input.objective.num_gradient_groups() > 1
                                  ? input.objective.make_split_constraint(input.samples).groups
                                  : std::vector<int64_t>{}) {}

  GradientAccumulationResult run() {
    VLMTRAIN_CHECK(layout_.split.order.size() == input_.samples.size(), "the split has {} samples, expected {}",
                   layout_.split.order.size(), input_.samples.size());
    StepResult& result = accumulation_.result;
    result.task_counts = input_.objective.compute_task_counts(input_.samples);
    try {
      result.loss = at::zeros({}, at::TensorOptions(at::kFloat).device(device_));
      accumulation_.loss = input_.objective.begin_step(model_, input_.normalizers, layout_);
      const int64_t last = layout_.split.num_micro_batches() - 1;
      for (int64_t i = 0; i <= last; ++i) {
        if (reducer_ != nullptr && i == last) reducer_->begin_last_micro_batch();
        run_micro_batch(layout_.split.get_sample_indices(i));
      }
    } catch (const std::exception& error) {
      wait_for_backward_thread(device_);
      if (memory::detect_out_of_memory(error)) model_.parameters().join_remaining_passes();
      rethrow_out_of_memory(error, result.num_micro_batches);
    }
    model_.parameters().join_remaining_passes();
    return std::move(accumulation_);
  }

 private:
  void run_micro_batch(std::span<const int64_t> sample_indices) {
    if (buckets_ != nullptr && !sample_group_indices_.empty())
      buckets_->set_gradient_group(get_common_gradient_group(sample_indices));
    const auto batch = source_.next();
    StepResult& result = accumulation_.result;
    const nn::ForwardPassSpec pass_spec{.num_vision_passes = model_.num_vision_passes(batch), .runs_backward = true};
    run_pass(model_.parameters(), pass_spec, [&] {
      const at::Tensor loss = accumulation_.loss->forward(batch);
      // The loss of a text-only micro-batch does not depend on a trained parameter if only the
      // vision tower or its adapters are trained.
      if (loss.requires_grad()) loss.backward(loss_scale_);
      result.loss += loss.detach();
    });
    result.tokens += batch.tokens();
    result.label_tokens += batch.label_tokens();
    result.label_weight += batch.label_weight_sum;
    result.num_media += batch.num_media;
    result.num_volumes += batch.num_volumes;
    result.samples += batch.samples;
    result.num_micro_batches += 1;
  }

  /// Returns the gradient group of all these samples.
  int64_t get_common_gradient_group(std::span<const int64_t> sample_indices) const {
    const auto get_gradient_group = [this](int64_t sample_index) {
      return sample_group_indices_.at(static_cast<size_t>(sample_index));
    };
    const int64_t group = get_gradient_group(sample_indices.front());
    const bool have_common_group = std::ranges::all_of(
        sample_indices, [&](int64_t sample_index) { return get_gradient_group(sample_index) == group; });
    VLMTRAIN_CHECK(have_common_group, "the samples of a micro-batch belong to several gradient groups");
    return group;
  }

  const models::VisionLanguageModel& model_;
  const StepInput& input_;
  const StepLayout& layout_;
  const at::Tensor& loss_scale_;
  GradientBuckets* buckets_;
  GradientReducer* reducer_;
  at::Device device_;
  MicroBatchSource source_;
  std::vector<int64_t> sample_group_indices_;  // by sample; empty if there is one group
  GradientAccumulationResult accumulation_;
};

/// Sums the counts over all ranks, except for the number of micro-batches, which remains local.
void all_reduce_counts(StepResult& result, const Consensus& consensus) {
  std::vector<int64_t*> counts{&result.tokens, &result.label_tokens, &result.num_media, &result.num_volumes,
                               &result.samples};
  std::vector<double*> weights{&result.label_weight};
  for (auto& task : result.task_counts) {
    counts.insert(counts.end(), {&task.samples, &task.label_tokens});
    weights.push_back(&task.label_weight);
  }
  std::vector<double> sums;
  sums.reserve(counts.size() + weights.size());
  for (const int64_t* const count : counts) sums.push_back(static_cast<double>(*count));
  for (const double* const weight : weights) sums.push_back(*weight);
  sums = consensus.sum_over_ranks(std::move(sums));
  for (size_t i = 0; i < counts.size(); ++i) *counts[i] = std::llround(sums[i]);
  for (size_t i = 0; i < weights.size(); ++i) *weights[i] = sums[counts.size() + i];
}

/// Sums this rank's shards of the gradients over the ranks that have the same shards.
void all_reduce_replicas(const TrainingState& training, const Consensus& consensus) {
  if (training.gradient_buckets.shard().covers_all()) return;
  for (const auto& shard : training.gradient_reducer.get_local_shards()) consensus.all_reduce_replicas_async(shard);
  consensus.wait_for_reductions();
}

/// Returns the global norm of sharded gradients, an fp32 scalar; undefined if they are not sharded.
at::Tensor compute_sharded_norm(const GradientBuckets& buckets, const Consensus& consensus) {
  if (buckets.shard().covers_all()) return {};
  const at::Tensor squared_norm = buckets.compute_local_norm().square_();
  consensus.all_reduce_group_async(squared_norm);
  consensus.wait_for_reductions();
  return squared_norm.sqrt_();
}

/// Returns StepResult::scalars.
at::Tensor pack_step_scalars(const StepResult& result) {
  const at::Tensor scale = result.loss_scale.defined() ? result.loss_scale : at::zeros_like(result.loss);
  const at::Tensor scalars = at::stack({result.loss, result.grad_norm, result.skipped, scale.reshape({})});
  return result.objective_scalars.defined() ? at::cat({scalars, result.objective_scalars}) : scalars;
}

}  // namespace

PartialUpdateError::PartialUpdateError(const memory::OutOfMemory& out_of_memory)
    : UserError(ExitCode::kFailed,
                fmt::format("{} ran out during the weight update: {}; restart to resume from the last checkpoint; "
                            "{}=conservative keeps more memory free",
                            memory::to_string(out_of_memory.kind), out_of_memory.reason, keys::memory::kMode)) {}

StepInput make_step_input(const Objective& objective, std::span<const data::Sample> samples) {
  return {.objective = objective, .samples = samples, .normalizers = objective.compute_normalizers(samples)};
}

GradientAccumulationResult accumulate(models::VisionLanguageModel& model, const StepInput& input,
                                      const StepLayout& layout, const at::Tensor& loss_scale, GradientBuckets* buckets,
                                      GradientReducer* reducer) {
  model.set_recompute_block_counts(layout.recompute);
  model.set_vision_tiles_per_pass(layout.vision_tiles_per_pass);
  return GradientAccumulation(model, input, layout, loss_scale, buckets, reducer).run();
}

void TrainingStep::accumulate(const StepLayout& layout) {
  // Also called if this rank's passes failed, because other ranks wait for its reductions.
  const auto finish_reductions = [this] {
    training_state_.gradient_reducer.flush();
    consensus_.wait_for_reductions();
    all_reduce_replicas(training_state_, consensus_);
  };
  try {
    accumulation_result_ =
        engine::accumulate(training_state_.model, input_, layout, training_state_.optimizer.loss_scale(),
                           &training_state_.gradient_buckets, &training_state_.gradient_reducer);
  } catch (const StepOutOfMemory&) {
    finish_reductions();
    throw;
  }
  finish_reductions();
}

void TrainingStep::prepare() {
  StepResult& result = accumulation_result_.result;
  try {
    training_state_.gradient_reducer.mark_gradients_of_all_ranks(consensus_);
    all_reduce_counts(result, consensus_);
    consensus_.all_reduce_sum_async(result.loss);
    for (const auto& sum : accumulation_result_.loss->get_sums_to_reduce()) consensus_.all_reduce_sum_async(sum);
    consensus_.wait_for_reductions();
    result.objective_scalars = accumulation_result_.loss->compute_metric_scalars();
    accumulation_result_.loss.reset();
    if (input_.objective.num_gradient_groups() > 1)
      input_.objective.combine_gradients(training_state_.gradient_buckets);
    optimizer_update_ = training_state_.optimizer.prepare(
        result.loss, compute_sharded_norm(training_state_.gradient_buckets, consensus_));
    result.grad_norm = optimizer_update_.grad_norm;
    result.skipped = optimizer_update_.skipped;
    result.loss_scale = optimizer_update_.loss_scale;
    result.scalars = pack_step_scalars(result);
  } catch (const std::exception& error) {
    rethrow_out_of_memory(error, -1);
  }
}

StepResult TrainingStep::apply_update(const LearningRates& rates) {
  try {
    training_state_.optimizer.apply_update(optimizer_update_, rates);
    if (training_state_.optimizer_sync) training_state_.optimizer_sync->all_gather_weights(consensus_);
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    throw PartialUpdateError(*out_of_memory);
  }
  return std::move(accumulation_result_.result);
}

StepResult run_optimizer_step(TrainingState& training, const StepInput& input, const StepLayout& layout,
                              const LearningRates& rates) {
  const Consensus single_rank_consensus;
  TrainingStep step(training, input, single_rank_consensus);
  step.accumulate(layout);
  step.prepare();
  return step.apply_update(rates);
}

}  // namespace vlmtrain::engine

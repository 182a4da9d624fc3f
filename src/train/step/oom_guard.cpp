#include "train/step/oom_guard.h"

#include <ATen/Context.h>

#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

using engine::StepStatus;
using memory::MemoryKind;

namespace {

/// Returns the error for a device on which even small allocations fail.
UserError make_device_full_error(const std::string& reason) {
  return run_error(
      "device memory is exhausted regardless of the sample: {}; check what else uses the GPU (nvidia-smi), then start "
      "again: the run resumes from its last checkpoint",
      reason);
}

}  // namespace

OomGuard::OomGuard(engine::TrainingState& training, at::Device device, const engine::Consensus& consensus,
                   FailureHandler on_failure)
    : training_(training), device_(device), consensus_(consensus), on_failure_(std::move(on_failure)) {}

namespace {

/// Joins the nonempty errors of all ranks. With several ranks, each error has the rank's number.
std::string join_rank_errors(const std::vector<std::string>& rank_errors) {
  if (rank_errors.size() == 1) return rank_errors.front();
  std::string text;
  for (size_t rank = 0; rank < rank_errors.size(); ++rank) {
    if (!rank_errors[rank].empty())
      text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, rank_errors[rank]);
  }
  return text;
}

}  // namespace

CompletedStep OomGuard::step(const engine::Objective& objective, std::span<const data::Sample> samples,
                             const engine::StepLayout& layout, uint64_t seed,
                             const LearningRatesFunction& compute_step_learning_rates) {
  const engine::StepInput input{.objective = objective,
                                .samples = samples,
                                .normalizers = consensus_.sum_over_ranks(objective.compute_normalizers(samples))};
  CompletedStep completed_step{.result = {}, .layout = layout};
  RecoveryState recovery_state;
  for (;; ++completed_step.num_failed_attempts) {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    generator.set_current_seed(seed);
    const AttemptResult result = attempt_step(input, compute_step_learning_rates, completed_step);
    if (result.is_done) return completed_step;
    release_attempt_memory(result.failure ? result.failure->memory_kind() : MemoryKind::kDevice);
    std::optional<OversizedSampleError> fatal_error;
    try {
      if (result.failure)
        completed_step.layout = choose_next_layout(completed_step.layout, *result.failure, recovery_state);
    } catch (const OversizedSampleError& error) {
      fatal_error = error;
    }
    if (consensus_.all_reduce_max(fatal_error ? StepStatus::kSkipSample : StepStatus::kOk) == StepStatus::kSkipSample) {
      const std::string joined_errors =
          join_rank_errors(consensus_.all_gather_strings(fatal_error ? fatal_error->what() : ""));
      throw fatal_error ? *fatal_error : OversizedSampleError(std::nullopt, MemoryKind::kDevice, joined_errors);
    }
    on_failure_(join_rank_errors(consensus_.all_gather_strings(result.failure ? result.failure->what() : "")),
                completed_step.layout);
  }
}

OomGuard::AttemptResult OomGuard::attempt_step(const engine::StepInput& input,
                                               const LearningRatesFunction& compute_step_learning_rates,
                                               CompletedStep& completed_step) {
  engine::TrainingStep step(training_, input, consensus_);
  AttemptResult result;
  const auto run_phase = [&](const auto& phase) {
    try {
      phase();
    } catch (const engine::StepOutOfMemory& error) {
      result.failure = error;
    }
    return consensus_.all_reduce_max(result.failure ? StepStatus::kRetrySmaller : StepStatus::kOk) == StepStatus::kOk;
  };
  if (!run_phase([&] { step.accumulate(completed_step.layout); })) return result;
  const engine::LearningRates learning_rates = compute_step_learning_rates();
  if (!run_phase([&] { step.prepare(); })) return result;
  completed_step.result = step.apply_update(learning_rates);
  result.is_done = true;
  return result;
}

/// Frees the memory of a failed attempt. REQUIRES: its tensors are destroyed, except the gradient
/// buckets.
void OomGuard::release_attempt_memory(memory::MemoryKind memory_kind) {
  if (memory_kind != MemoryKind::kDevice) memory::release_pinned_memory(device_);
  training_.gradient_buckets.reset();
  memory::empty_cache(device_);
}

engine::StepLayout OomGuard::choose_next_layout(const engine::StepLayout& failed_layout,
                                                const engine::StepOutOfMemory& error,
                                                RecoveryState& recovery_state) const {
  // The driver allocates outside PyTorch's cache, which is empty now.
  if (error.memory_kind() == MemoryKind::kDriver && !std::exchange(recovery_state.has_emptied_cache, true))
    return failed_layout;
  if (!std::exchange(recovery_state.has_halved_micro_batch, true)) {
    if (auto smaller_layout = engine::subdivide_micro_batches(failed_layout, error.micro_batch_index(),
                                                              engine::SubdivisionMode::kAtLeastAsLarge)) {
      smaller_layout->copies_ahead = false;
      return std::move(*smaller_layout);
    }
  }
  const models::RecomputeBlockCounts full_recompute_counts{training_.model.num_vision_blocks(),
                                                           training_.model.num_language_blocks()};
  if (const auto min_memory_layout = engine::minimize_layout_memory(failed_layout, full_recompute_counts))
    return *min_memory_layout;
  if (const auto single_sample_layout = engine::subdivide_micro_batches(failed_layout, error.micro_batch_index(),
                                                                        engine::SubdivisionMode::kSingleSamples)) {
    return *single_sample_layout;
  }
  if (const auto failure = device_.is_cpu() ? std::nullopt : memory::find_device_failure(device_)) {
    throw make_device_full_error(*failure);
  }
  if (error.micro_batch_index() < 0) {  // the optimizer failed
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("the optimizer step does not fit into {}: {}; free memory there, or train fewer "
                                "weights ({}, model.freeze_…)",
                                memory::to_string(error.memory_kind()), error.what(), keys::lora::kRank));
  }
  throw OversizedSampleError(failed_layout.split.get_sample_indices(error.micro_batch_index()).front(),
                             error.memory_kind(), error.what());
}

}  // namespace vlmtrain::train

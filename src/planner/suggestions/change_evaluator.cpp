#include "planner/suggestions/change_evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/plan/offload.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/models/checkpoint_info.h"

namespace vlmtrain::planner {

namespace {

/// Adds LoRA to a job without it. Returns false if the job has it or trains nothing that supports
/// adapters.
bool enable_lora(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  if (change.job.lora || !can_use_lora(change.job.frozen_parts)) return false;
  change.job.lora = make_lora_settings(plan_inputs.job, plan_inputs.flags.lora_rank);
  change.arguments = format_arguments(plan_inputs.flags.lora_argument_format, plan_inputs.flags.lora_rank);
  change.description =
      fmt::format("trains LoRA adapters of rank {} instead of all weights", plan_inputs.flags.lora_rank);
  if (change.job.offload == engine::Offload::kGradients) {
    change.job.offload = engine::Offload::kWeights;
    change.arguments.push_back(fmt::format("{}={}", keys::memory::kOffload, engine::to_string(change.job.offload)));
  }
  return true;
}

// The following functions apply a change. They return false and leave `change` as it is if it does
// not apply.

bool quantize_frozen_weights(nn::Quantization quantization, JobChange& change) {
  if (!change.job.lora || change.job.quantization != nn::Quantization::kNone) return false;
  change.job.quantization = quantization;
  change.arguments.push_back(fmt::format("{}=", keys::model::kQuantization) + nn::to_string(quantization));
  change.description += fmt::format("{}stores the frozen Linears in {} bits", change.description.empty() ? "" : " and ",
                                    quantization == nn::Quantization::kNf4 ? 4 : 8);
  return true;
}

bool move_tables_to_host(JobChange& change) {
  if (change.job.per_layer_tables == nn::MemoryPlacement::kHost || !can_keep_tables_on_host(change.job)) return false;
  change.job.per_layer_tables = nn::MemoryPlacement::kHost;
  change.arguments.push_back(fmt::format("{}=host", keys::memory::kPerLayerEmbeddings));
  change.description = "keeps the table of per-layer embeddings in host memory";
  return true;
}

bool use_16_bit_precision(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  if (change.job.precision != engine::Precision::kFp32) return false;
  change.job = make_job_with_precision(std::move(change.job),
                                       plan_inputs.has_bf16 ? engine::Precision::kBf16 : engine::Precision::kFp16);
  change.arguments.push_back(fmt::format("{}=", keys::training::kPrecision) + engine::to_string(change.job.precision));
  change.description = "computes in 16 bits";
  return true;
}

bool add_sharding(engine::ShardingStrategy sharding, const char* description, JobChange& change) {
  Job& job = change.job;
  const auto shardings = list_possible_shardings(job);
  if (job.sharding >= sharding || std::ranges::find(shardings, sharding) == shardings.end()) return false;
  job.sharding = sharding;
  change.arguments.push_back(fmt::format("{}={}", keys::distributed::kSharding, engine::to_string(sharding)));
  change.description = description;
  return true;
}

bool shard_optimizer_state(JobChange& change) {
  return add_sharding(engine::ShardingStrategy::kOptimizer, "shards the optimizer state over the ranks", change);
}

bool shard_weights(JobChange& change) {
  return add_sharding(engine::ShardingStrategy::kFull, "shards weights, gradients and optimizer state over the ranks",
                      change);
}

bool use_8_bit_optimizer_state(JobChange& change) {
  engine::OptimizerStateDtype& states = change.job.optimizer.state_dtype;
  if (states == engine::OptimizerStateDtype::k8Bit || !change.job.optimizer.supports_compressed_moments()) return false;
  states = engine::OptimizerStateDtype::k8Bit;
  change.arguments.push_back(fmt::format("{}=", keys::training::kOptimizerStates) + engine::to_string(states));
  change.description = "stores the optimizer's moments in 8 bits";
  return true;
}

/// Moves more to host memory. Returns false if the host lacks the memory.
bool set_offload(engine::Offload offload, const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  Job& job = change.job;
  if (!plan_inputs.host_link || job.offload >= offload) return false;
  job.offload = offload;
  const OffloadedBytes bytes = compute_offloaded_bytes(job);
  if (bytes.sum() > plan_inputs.usable_host_bytes.value_or(bytes.sum())) return false;
  const memory::HostLinkSpeed& link = *plan_inputs.host_link;
  change.arguments.push_back(fmt::format("{}={}", keys::memory::kOffload, engine::to_string(offload)));
  change.description =
      fmt::format("keeps {:.1f} GB in host memory; a step takes {:.2f} s more for it", to_gigabytes(bytes.sum()),
                  static_cast<double>(bytes.state + 2 * bytes.gradients) / link.both);
  if (bytes.weights > 0) {
    const double micro_batch_seconds =
        2 * static_cast<double>(bytes.weights) / link.in + static_cast<double>(bytes.gradients) / link.both;
    change.description += fmt::format(", and a micro-batch at least {:.2f} s", micro_batch_seconds);
  }
  return true;
}

/// Moves the inputs of recomputed blocks to host memory, as many as have space there.
bool move_activations_to_host(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  Job& job = change.job;
  if (!plan_inputs.host_link || job.offload_activations) return false;
  job.offload_activations = true;
  job.max_host_activation_bytes = compute_max_activation_bytes(job, plan_inputs.usable_host_bytes);
  change.arguments.push_back(fmt::format("{}=true", keys::memory::kOffloadActivations));
  change.description = "copies the inputs of recomputed blocks to host memory";
  return true;
}

bool move_optimizer_state_to_host(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  return !change.job.lora && set_offload(engine::Offload::kOptimizer, plan_inputs, change);
}

bool move_weights_to_host(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  return can_offload_weights(change.job) && set_offload(engine::Offload::kWeights, plan_inputs, change);
}

bool move_gradients_to_host(const ChangeEvaluator::PlanInputs& plan_inputs, JobChange& change) {
  return can_offload_gradients(change.job) && set_offload(engine::Offload::kGradients, plan_inputs, change);
}

bool freeze_vision_tower(JobChange& change) {
  auto& frozen_parts = change.job.frozen_parts;
  // A part of the model has to be trained.
  if (frozen_parts.vision_tower || frozen_parts.language_model) return false;
  frozen_parts.vision_tower = true;
  if (change.job.lora && change.job.lora->adapter.empty()) {
    change.job.lora->excluded_components.push_back(nn::Component::kVisionTower);
  }
  change.arguments.emplace_back(fmt::format("{}=true", keys::model::kFreezeVisionTower));
  change.description = "freezes the vision tower";
  return true;
}

/// Applies each function to a copy of the job, and returns the changes that apply.
template <class... Functions>
std::vector<JobChange> list_applicable_changes(const ChangeEvaluator::PlanInputs& plan_inputs,
                                               const Functions&... functions) {
  std::vector<JobChange> list;
  const auto add = [&](const auto& apply_change) {
    JobChange change{.arguments = {}, .description = {}, .job = plan_inputs.job};
    change.job.optimizer.allows_unmatched_patterns = true;
    if (apply_change(change)) list.push_back(std::move(change));
  };
  (add(functions), ...);
  return list;
}

}  // namespace

bool can_use_lora(const models::FrozenParts& frozen_parts) {
  return !(frozen_parts.vision_tower && frozen_parts.projector && frozen_parts.language_model);
}

nn::LoraSettings make_lora_settings(const Job& job, int64_t rank) {
  const models::FrozenParts& frozen_parts = job.frozen_parts;
  nn::LoraSettings settings{.rank = rank,
                            .modules_to_save = models::get_default_modules_to_save(job.model, frozen_parts)};
  if (frozen_parts.vision_tower) settings.excluded_components.push_back(nn::Component::kVisionTower);
  if (frozen_parts.projector) settings.excluded_components.push_back(nn::Component::kProjector);
  if (frozen_parts.language_model) settings.excluded_components.push_back(nn::Component::kLanguageModel);
  if (frozen_parts.mask_encoder) settings.excluded_components.push_back(nn::Component::kMaskEncoder);
  return settings;
}

std::vector<JobChange> list_same_parameter_changes(const ChangeEvaluator::PlanInputs& plan_inputs) {
  return list_applicable_changes(
      plan_inputs, move_tables_to_host, shard_optimizer_state, shard_weights,
      [&](JobChange& change) { return use_16_bit_precision(plan_inputs, change); }, use_8_bit_optimizer_state,
      [&](JobChange& change) { return move_optimizer_state_to_host(plan_inputs, change); },
      [&](JobChange& change) { return move_weights_to_host(plan_inputs, change); },
      [&](JobChange& change) { return move_gradients_to_host(plan_inputs, change); },
      [&](JobChange& change) { return move_activations_to_host(plan_inputs, change); },
      [](JobChange& change) { return quantize_frozen_weights(nn::Quantization::kInt8, change); },
      [](JobChange& change) { return quantize_frozen_weights(nn::Quantization::kNf4, change); });
}

std::vector<JobChange> list_fewer_parameter_changes(const ChangeEvaluator::PlanInputs& plan_inputs) {
  return list_applicable_changes(plan_inputs, freeze_vision_tower,
                                 [&](JobChange& change) { return enable_lora(plan_inputs, change); });
}

std::vector<JobChange> list_changes_to_smallest_job(const ChangeEvaluator::PlanInputs& plan_inputs) {
  return list_applicable_changes(plan_inputs, [&](JobChange& change) {
    // No short-circuit: both are applied.
    const bool has_added_lora = enable_lora(plan_inputs, change);
    const bool has_quantized_weights = quantize_frozen_weights(nn::Quantization::kNf4, change);
    return has_added_lora || has_quantized_weights;
  });
}

}  // namespace vlmtrain::planner

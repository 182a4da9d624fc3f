#include "vlmtrain/planner/host_plan.h"

namespace vlmtrain::planner {

namespace {

nlohmann::ordered_json blocks_json(const models::RecomputeBlocks& blocks) {
  return {{"language_blocks", blocks.language}, {"vision_blocks", blocks.vision}};
}

nlohmann::ordered_json host_memory_json(const HostPlan& plan) {
  using memory::Component;
  const auto bytes = [&](Component component) { return plan.detail.peak.by_component[static_cast<size_t>(component)]; };
  const int64_t vision = bytes(Component::kVision);
  const int64_t language = bytes(Component::kLanguage);
  const int64_t loss = bytes(Component::kLoss);
  const int64_t input = bytes(Component::kInput) + bytes(Component::kOther);
  return {{"weights_bytes", bytes(Component::kWeights)},
          {"gradients_bytes", bytes(Component::kGradients)},
          {"optimizer_bytes", bytes(Component::kOptimizer)},
          {"activations_bytes", vision + language + loss + input},
          {"allocated_peak_bytes", plan.peak_bytes},
          {"total_bytes", plan.total_bytes()},
          {"vision_activations_bytes", vision},
          {"language_activations_bytes", language},
          {"loss_bytes", loss},
          {"input_bytes", input},
          {"fragmentation_bytes", HostLimit::fragmented_bytes(plan.peak_bytes)},
          {"process_bytes", plan.limit.process_bytes},
          {"samples_ahead_bytes", plan.limit.samples_bytes},
          {"libraries_bytes", plan.limit.libraries_bytes}};
}

}  // namespace

nlohmann::ordered_json HostPlan::to_json() const {
  const data::SampleShape& largest = worst.shapes.front();
  return {{"fits", fits},
          {"device", "cpu"},
          {"model", model},
          {"precision", engine::name_of(job.precision)},
          {"optimizer_states", engine::name_of(job.optimizer_states)},
          {"finetune", job.lora ? "lora" : "full"},
          {"quantization", nn::name_of(job.quantization)},
          {"micro_batch_size", choices.micro_batch_size},
          {"gradient_accumulation_steps", workload.samples_per_rank() / choices.micro_batch_size},
          {"global_batch_size", workload.global_batch_size},
          {"recompute", blocks_json(choices.recompute)},
          {"blocks", blocks_json({detail.vision_blocks, detail.language_blocks})},
          {"vision_tiles_per_pass", choices.vision_tiles_per_pass},
          {"loss_chunk_rows", choices.loss_chunk_rows},
          {"tokens_per_sample", largest.tokens},
          {"tiles_per_sample", largest.tiles},
          {"label_tokens_per_sample", largest.label_tokens},
          {"worst_sample", worst.first_id},
          {"room_bytes", limit.room.bytes},
          {"room_bound", limit.room.bound},
          {"mode", name_of(mode)},
          {"margin_bytes", limit.margin_bytes},
          {"margin_percent", limit.margin_percent},
          {"limit_bytes", limit.tensor_bytes},
          {"parameters", detail.total_elements},
          {"trained_parameters", detail.trained_elements},
          {"memory", host_memory_json(*this)},
          {"remedies", remedies},
          {"rehearsals", effort.rehearsals},
          {"rehearsal_seconds", effort.rehearsal_seconds},
          {"plan_seconds", effort.seconds}};
}

}  // namespace vlmtrain::planner

#include "planner/plan_json.h"

namespace vlmtrain::planner {

namespace {

nlohmann::ordered_json suggestions_json(const std::vector<Suggestion>& suggestions) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& suggestion : suggestions) {
    list.push_back(
        {{"text", suggestion.text()},
         {"makes_it_fit", suggestion.makes_it_fit},
         {"arguments", suggestion.arguments},
         {"total_bytes", suggestion.total_bytes > 0 ? nlohmann::ordered_json(suggestion.total_bytes) : nullptr}});
  }
  return list;
}

}  // namespace

nlohmann::ordered_json blocks_json(const models::RecomputeBlocks& blocks) {
  return {{"language_blocks", blocks.language},
          {"language_attention_kept", blocks.language_attention_kept},
          {"vision_blocks", blocks.vision}};
}

nlohmann::ordered_json peak_bytes_json(const memory::Peak& peak) {
  using memory::Component;
  const auto bytes = [&](Component component) { return peak.by_component[static_cast<size_t>(component)]; };
  const int64_t vision = bytes(Component::kVision);
  const int64_t language = bytes(Component::kLanguage);
  const int64_t masks = bytes(Component::kMasks);
  const int64_t loss = bytes(Component::kLoss);
  const int64_t input = bytes(Component::kInput) + bytes(Component::kOther);
  return {{"weights_bytes", bytes(Component::kWeights)},
          {"gradients_bytes", bytes(Component::kGradients)},
          {"optimizer_bytes", bytes(Component::kOptimizer)},
          {"activations_bytes", vision + language + masks + loss + input},
          {"vision_activations_bytes", vision},
          {"language_activations_bytes", language},
          {"mask_activations_bytes", masks},
          {"loss_bytes", loss},
          {"input_bytes", input}};
}

nlohmann::ordered_json planned_json(const PlannedStep& step) {
  const data::SampleShape& largest = step.worst.shapes.front();
  const std::string& id = step.worst.first_id;
  const auto& packed = step.workload.packed;
  return {{"fits", step.fits},
          {"model", step.model},
          {"precision", engine::name_of(step.job.precision)},
          {"optimizer_states", engine::name_of(step.job.optimizer.states)},
          {"finetune", step.job.lora ? "lora" : "full"},
          {"quantization", nn::name_of(step.job.quantization)},
          {"micro_batch_size", step.choices.micro_batch_size},
          {"gradient_accumulation_steps", step.workload.samples_per_rank() / step.choices.micro_batch_size},
          {"global_batch_size", step.workload.global_batch_size},
          {"samples_per_pack", packed ? nlohmann::ordered_json(packed->per_pack) : nullptr},
          {"world_size", step.workload.world_size},
          {"sharding", engine::name_of(step.job.sharding)},
          {"recompute", blocks_json(step.choices.recompute)},
          {"blocks", blocks_json({step.detail.vision_blocks, step.detail.language_blocks})},
          {"vision_tiles_per_pass", step.choices.vision_tiles_per_pass},
          {"loss_chunk_rows", step.choices.loss_chunk_rows},
          {"tokens_per_sample", largest.tokens},
          {"tiles_per_sample", largest.pixel_rows},
          {"images_per_sample", largest.images - largest.videos - largest.volumes},
          {"videos_per_sample", largest.videos},
          {"video_frames_per_sample", largest.video_frames},
          {"volumes_per_sample", largest.volumes},
          {"label_tokens_per_sample", largest.label_tokens},
          {"worst_sample", id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(id)},
          {"mode", name_of(step.mode)},
          {"parameters", step.detail.total_elements},
          {"trained_parameters", step.detail.trained_elements},
          {"suggestions", suggestions_json(step.suggestions)},
          {"rehearsals", step.effort.rehearsals},
          {"rehearsal_seconds", step.effort.rehearsal_seconds},
          {"plan_seconds", step.effort.seconds}};
}

}  // namespace vlmtrain::planner

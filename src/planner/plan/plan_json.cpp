#include "planner/plan/plan_json.h"

#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

nlohmann::ordered_json make_suggestions_json(const std::vector<Suggestion>& suggestions) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& suggestion : suggestions) {
    list.push_back(
        {{"text", suggestion.text()},
         {"makes_it_fit", suggestion.makes_plan_fit},
         {"arguments", suggestion.arguments},
         {"total_bytes", suggestion.total_bytes > 0 ? nlohmann::ordered_json(suggestion.total_bytes) : nullptr}});
  }
  return list;
}

}  // namespace

nlohmann::ordered_json make_recompute_blocks_json(const models::RecomputeBlockCounts& blocks) {
  nlohmann::ordered_json json{{"language_blocks", blocks.language},
                              {"selective_language_blocks", blocks.language_selective},
                              {"vision_blocks", blocks.vision}};
  io::add_field_aliases(json, {{"selective_language_blocks", "language_attention_kept"}});
  return json;
}

nlohmann::ordered_json make_peak_bytes_json(const memory::MemoryPeak& peak) {
  using memory::Component;
  const auto bytes = [&](Component component) { return peak.bytes_by_component[static_cast<size_t>(component)]; };
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

nlohmann::ordered_json make_plan_summary_json(const PlanSummary& summary) {
  const data::SampleShape& largest = summary.worst_batch.shapes.front();
  const std::string& id = summary.worst_batch.first_sample_id;
  const auto& packed = summary.workload.packing;
  nlohmann::ordered_json json{
      {"fits", summary.fits},
      {"model", summary.model},
      {"precision", engine::to_string(summary.job.precision)},
      {"optimizer_states", engine::to_string(summary.job.optimizer.state_dtype)},
      {"finetune", summary.job.lora ? "lora" : "full"},
      {"quantization", nn::to_string(summary.job.quantization)},
      {"micro_batch_size", summary.step_config.micro_batch_size},
      {"gradient_accumulation_steps", summary.workload.samples_per_rank() / summary.step_config.micro_batch_size},
      {"global_batch_size", summary.workload.global_batch_size},
      {"samples_per_pack", packed ? nlohmann::ordered_json(packed->mean_samples_per_pack) : nullptr},
      {"world_size", summary.workload.world_size},
      {"sharding", engine::to_string(summary.job.sharding)},
      {"recompute", make_recompute_blocks_json(summary.step_config.recompute)},
      {"blocks", make_recompute_blocks_json({summary.detail.num_vision_blocks, summary.detail.num_language_blocks})},
      {"vision_tiles_per_pass", summary.step_config.vision_tiles_per_pass},
      {"loss_chunk_rows", summary.step_config.loss_chunk_rows},
      {"tokens_per_sample", largest.tokens},
      {"tiles_per_sample", largest.pixel_rows},
      {"images_per_sample", largest.num_images},
      {"videos_per_sample", largest.num_videos},
      {"video_frames_per_sample", largest.video_frames},
      {"volumes_per_sample", largest.num_volumes},
      {"label_tokens_per_sample", largest.label_tokens},
      {"worst_sample", id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(id)},
      {"mode", to_string(summary.mode)},
      {"parameters", summary.detail.num_parameters},
      {"trained_parameters", summary.detail.num_trainable_parameters},
      {"suggestions", make_suggestions_json(summary.suggestions)},
      {"dry_runs", summary.planning_stats.num_dry_runs},
      {"dry_run_seconds", summary.planning_stats.dry_run_seconds},
      {"plan_seconds", summary.planning_stats.seconds}};
  io::add_field_aliases(json, {{"dry_runs", "rehearsals"}, {"dry_run_seconds", "rehearsal_seconds"}});
  return json;
}

}  // namespace vlmtrain::planner

#include <algorithm>
#include <functional>

#include "vlmtrain/io/json.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

nlohmann::ordered_json make_recompute_blocks_json(const models::RecomputeBlockCounts& blocks) {
  nlohmann::ordered_json json{{"language_blocks", blocks.language},
                              {"selective_language_blocks", blocks.language_selective},
                              {"vision_blocks", blocks.vision}};
  io::add_field_aliases(json, {{"selective_language_blocks", "language_attention_kept"}});
  return json;
}

namespace {

/// Returns the bytes of each component at the peak, under keys such as "weights_bytes".
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

/// Returns the masters of the trained weights of the model; those of adapters are in fp32.
engine::MasterWeights choose_master_weights(const Plan& plan) {
  if (plan.job.lora && plan.job.lora->modules_to_save.empty()) return engine::MasterWeights::kFp32;
  return plan.job.optimizer.choose_master_weights(std::holds_alternative<TargetGpu>(plan.target),
                                                  plan.job.precision == engine::Precision::kBf16);
}

/// Returns the fields of all plans.
nlohmann::ordered_json make_common_json(const Plan& plan) {
  const data::SampleShape& largest = plan.worst_batch.shapes.front();
  const std::string& id = plan.worst_batch.first_sample_id;
  const auto& packed = plan.workload.packing;
  nlohmann::ordered_json json{
      {"fits", plan.fits},
      {"model", plan.model},
      {"precision", engine::to_string(plan.job.precision)},
      {"optimizer", engine::get_optimizer_info(plan.job.optimizer.kind).name},
      {"optimizer_states", engine::to_string(plan.job.optimizer.state_dtype)},
      {"master_weights", engine::to_string(choose_master_weights(plan))},
      {"finetune", plan.job.lora ? "lora" : "full"},
      {"quantization", nn::to_string(plan.job.quantization)},
      {"micro_batch_size", plan.best_estimate.step_config.micro_batch_size},
      {"gradient_accumulation_steps",
       plan.workload.samples_per_rank() / plan.best_estimate.step_config.micro_batch_size},
      {"global_batch_size", plan.workload.global_batch_size},
      {"samples_per_pack", packed ? nlohmann::ordered_json(packed->mean_samples_per_pack) : nullptr},
      {"world_size", plan.workload.world_size},
      {"sharding", engine::to_string(plan.job.sharding)},
      {"per_layer_embeddings", nn::to_string(plan.job.per_layer_tables)},
      {"offload", engine::to_string(plan.job.offload)},
      {"offload_activations", plan.job.offload_activations},
      {"recompute", make_recompute_blocks_json(plan.best_estimate.step_config.recompute)},
      {"blocks", make_recompute_blocks_json({plan.detail.num_vision_blocks, plan.detail.num_language_blocks})},
      {"vision_tiles_per_pass", plan.best_estimate.step_config.vision_tiles_per_pass},
      {"loss_chunk_rows", plan.best_estimate.step_config.loss_chunk_rows},
      {"tokens_per_sample", largest.tokens},
      {"tiles_per_sample", largest.pixel_rows},
      {"images_per_sample", largest.num_images},
      {"videos_per_sample", largest.num_videos},
      {"video_frames_per_sample", largest.video_frames},
      {"volumes_per_sample", largest.num_volumes},
      {"label_tokens_per_sample", largest.label_tokens},
      {"worst_sample", id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(id)},
      {"mode", to_string(plan.mode)},
      {"parameters", plan.detail.num_parameters},
      {"trained_parameters", plan.detail.num_trainable_parameters},
      {"suggestions", make_suggestions_json(plan.suggestions)},
      {"dry_runs", plan.planning_stats.num_dry_runs},
      {"dry_run_seconds", plan.planning_stats.dry_run_seconds},
      {"plan_seconds", plan.planning_stats.seconds}};
  io::add_field_aliases(json, {{"dry_runs", "rehearsals"}, {"dry_run_seconds", "rehearsal_seconds"}});
  return json;
}

nlohmann::ordered_json make_estimate_json(const StepEstimate& estimate, const Plan& plan) {
  nlohmann::ordered_json json{
      {"micro_batch_size", estimate.step_config.micro_batch_size},
      {"gradient_accumulation_steps", plan.workload.samples_per_rank() / estimate.step_config.micro_batch_size},
      {"recompute", make_recompute_blocks_json(estimate.step_config.recompute)},
      {"vision_tiles_per_pass", estimate.step_config.vision_tiles_per_pass},
      {"loss_chunk_rows", estimate.step_config.loss_chunk_rows},
      {"copies_ahead", estimate.step_config.copies_ahead},
      {"reserved_peak_bytes", estimate.peaks.reserved_bytes},
      {"total_bytes", plan.total_bytes(estimate)},
      {"step_seconds", estimate.step_seconds},
      {"tokens_per_second", estimate.tokens_per_second},
      {"fits", estimate.fits},
      {"from_dry_run", estimate.is_from_dry_run}};
  io::add_field_aliases(json, {{"from_dry_run", "rehearsed"}});
  return json;
}

nlohmann::ordered_json make_gpu_memory_json(const Plan& plan) {
  const StepPeaks peaks = plan.peaks();
  auto json = make_peak_bytes_json(plan.detail.peak);
  json.update(
      {{"workspace_bytes", plan.detail.peak.bytes_by_component[static_cast<size_t>(memory::Component::kWorkspace)]},
       {"context_bytes", plan.limit.context_bytes},
       {"communication_bytes", plan.limit.communication_bytes},
       {"host_bytes", plan.host_bytes()},
       {"host_activation_bytes", peaks.host_activation_bytes},
       {"allocated_peak_bytes", peaks.allocated_bytes},
       {"reserved_peak_bytes", peaks.reserved_bytes},
       {"total_bytes", plan.total_bytes()},
       {"fragmentation_bytes", peaks.reserved_bytes - peaks.allocated_bytes},
       {"context_measured", plan.gpu().is_context_measured}});
  return json;
}

nlohmann::ordered_json make_peak_json(const memory::MemoryPeak& peak) {
  return {{"during", memory::to_string(peak.tag.component)},
          {"block", peak.tag.block < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.tag.block)},
          {"pass", peak.is_backward ? "backward" : "forward"}};
}

nlohmann::ordered_json make_cost_json(const OperationCost& cost) {
  nlohmann::ordered_json json{
      {"matmul_operations", cost.matmul_flops},       {"misaligned_matmul_operations", cost.misaligned_matmul_flops},
      {"attention_operations", cost.attention_flops}, {"bytes_moved", cost.bytes_moved},
      {"launches", cost.num_kernel_launches},         {"seconds", cost.seconds}};
  io::add_field_aliases(json, {{"matmul_operations", "product_operations"}});
  return json;
}

nlohmann::ordered_json make_average_step_json(const AverageStepEstimate& average, const Plan& plan) {
  auto samples = nlohmann::ordered_json::array();
  int64_t tokens = 0;
  for (const auto& [shape, count] : average.samples) {
    samples.push_back({{"samples", count},
                       {"images", shape.num_images + shape.num_volumes},
                       {"video_frames", shape.video_frames},
                       {"tokens", shape.tokens}});
    tokens += count * shape.tokens;
  }
  return {{"samples", samples},
          {"tokens_per_sample", static_cast<double>(tokens) / static_cast<double>(plan.workload.samples_per_rank())},
          {"allocated_peak_bytes", average.peaks.allocated_bytes},
          {"reserved_peak_bytes", average.peaks.reserved_bytes},
          {"step_seconds", average.step_seconds},
          {"tokens_per_second", average.tokens_per_second},
          {"samples_per_second", average.samples_per_second}};
}

/// Returns the object `ranks` of plan.json, the rank with the highest peak first; null if it is
/// empty.
nlohmann::ordered_json make_rank_steps_json(std::vector<RankStepPeaks> steps) {
  if (steps.empty()) return nullptr;
  std::ranges::stable_sort(steps, std::greater{}, [](const RankStepPeaks& step) { return step.peaks.reserved_bytes; });
  auto json = nlohmann::ordered_json::array();
  for (const auto& step : steps) {
    nlohmann::ordered_json step_json{{"rank", step.rank},
                                     {"sampled_step", step.sampled_step_index},
                                     {"allocated_peak_bytes", step.peaks.allocated_bytes},
                                     {"reserved_peak_bytes", step.peaks.reserved_bytes}};
    io::add_field_aliases(step_json, {{"sampled_step", "drawn_step"}});
    json.push_back(std::move(step_json));
  }
  return json;
}

/// Returns the object `measured_host_link` of plan.json; null if the plan uses the data sheet's speed.
nlohmann::ordered_json make_host_link_json(const std::optional<memory::HostLinkSpeed>& link) {
  if (!link) return nullptr;
  return {
      {"in_bytes_per_second", link->in}, {"out_bytes_per_second", link->out}, {"both_bytes_per_second", link->both}};
}

/// Adds the fields of plans for GPUs.
void add_gpu_fields(const Plan& plan, nlohmann::ordered_json& json) {
  auto alternatives_json = nlohmann::ordered_json::array();
  for (const auto& estimate : plan.alternatives) alternatives_json.push_back(make_estimate_json(estimate, plan));
  json.update(
      {{"expandable_segments", plan.best_estimate.step_config.expandable_segments},
       {"copies_ahead", plan.best_estimate.step_config.copies_ahead},
       {"gpu", plan.gpu().description},
       {"gpu_bytes", plan.limit.allowed_bytes},
       {"other_processes_bytes", plan.gpu().other_process_bytes},
       {"margin_bytes", plan.limit.margin_bytes},
       {"margin_percent", plan.limit.margin_percent},
       {"limit_bytes", plan.limit.limit_bytes},
       {"memory", make_gpu_memory_json(plan)},
       {"peak", make_peak_json(plan.detail.peak)},
       {"step_seconds", plan.best_estimate.step_seconds},
       {"tokens_per_second", plan.best_estimate.tokens_per_second},
       {"dry_run_step_cost", make_cost_json(plan.costs->total)},
       {"predicted",
        "step_seconds and tokens_per_second are computed from counted operations and data sheets, not measured"},
       {"alternatives", alternatives_json},
       {"split", plan.split ? plan.split->to_json() : nullptr}});
  io::add_field_aliases(json, {{"gpu", "card"},
                               {"gpu_bytes", "card_bytes"},
                               {"other_processes_bytes", "others_bytes"},
                               {"dry_run_step_cost", "rehearsed_step_cost"},
                               {"split", "cut"}});
  if (plan.average_step_estimate) json["average"] = make_average_step_json(*plan.average_step_estimate, plan);
  json["communication"] = plan.communication_estimate ? plan.communication_estimate->to_json() : nullptr;
  json["ranks"] = make_rank_steps_json(plan.rank_step_peaks);
  json["measured_host_link"] = make_host_link_json(plan.job.host_link);
}

/// Adds the fields of plans for a host.
void add_host_fields(const Plan& plan, nlohmann::ordered_json& json) {
  const StepPeaks peaks = plan.peaks();
  auto memory = make_peak_bytes_json(plan.detail.peak);
  memory.update({{"allocated_peak_bytes", peaks.allocated_bytes},
                 {"total_bytes", plan.total_bytes()},
                 {"fragmentation_bytes", peaks.reserved_bytes - peaks.allocated_bytes},
                 {"process_bytes", plan.limit.process_bytes},
                 {"prefetched_samples_bytes", plan.limit.decoded_samples_bytes},
                 {"libraries_bytes", plan.limit.library_bytes}});
  io::add_field_aliases(memory, {{"prefetched_samples_bytes", "samples_ahead_bytes"}});
  json.update({{"device", "cpu"},
               {"split", plan.split ? plan.split->to_json() : nullptr},
               {"available_bytes", plan.limit.allowed_bytes},
               {"available_limited_by", plan.limit.limit_source},
               {"margin_bytes", plan.limit.margin_bytes},
               {"margin_percent", plan.limit.margin_percent},
               {"limit_bytes", plan.limit.limit_bytes},
               {"memory", memory}});
  io::add_field_aliases(json,
                        {{"split", "cut"}, {"available_bytes", "room_bytes"}, {"available_limited_by", "room_bound"}});
}

}  // namespace

nlohmann::ordered_json Plan::to_json() const {
  auto json = make_common_json(*this);
  std::holds_alternative<TargetGpu>(target) ? add_gpu_fields(*this, json) : add_host_fields(*this, json);
  if (evaluation) json["evaluation"] = evaluation->to_json();
  return json;
}

}  // namespace vlmtrain::planner

#include "planner/dry_run/protocol.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

/// std::optional as its value or null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& json, const std::optional<T>& value) {
    json = value ? nlohmann::json(*value) : nlohmann::json();
  }
  static void from_json(const json& json, std::optional<T>& value) {
    value = json.is_null() ? std::nullopt : std::optional{json.get<T>()};
  }
};

namespace vlmtrain {

namespace data {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PatchGrid, frames, rows, columns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PixelRowShape, dtype, channels, depth, height, width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SampleShape, tokens, label_tokens, image_tokens, num_images, pixel_rows, row,
                                   patch_grids, num_videos, video_frames, num_volumes, masks, num_images_with_masks,
                                   mask_image_size, has_label_weights, has_position_axes)
}  // namespace data

namespace memory {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostLinkSpeed, in, out, both)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryTag, component, block)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryPeak, event_index, allocated_bytes, bytes_by_component, tag, is_backward)
}  // namespace memory

namespace models {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FrozenParts, vision_tower, projector, language_model, per_layer_embeddings,
                                   mask_encoder)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RecomputeBlockCounts, vision, language, language_selective)
}  // namespace models

namespace engine {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TaskSettings, num_tasks, weights, measure_gradient_norms, resolve_gradient_conflicts,
                                   seed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvaluationLayout, vision_tiles_per_pass, loss_chunk_rows)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TextAndMaskLossWeights, text, bce, dice)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ObjectiveSettings, tasks, masks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MicroBatchSplit, order, sizes, unit_size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepLayout, split, recompute, vision_tiles_per_pass, loss_chunk_rows, copies_ahead)
}  // namespace engine

namespace nn {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoraSettings, rank, alpha, dropout, use_rslora, use_dora, target_modules,
                                   modules_to_save, excluded_components, adapter, unties_output, vocabulary_rows)
}  // namespace nn

namespace kernels {
void to_json(nlohmann::json& json, const Kernel& kernel) {
  json = to_string(kernel);
}
void from_json(const nlohmann::json& json, Kernel& kernel) {
  kernel = get_kernel(json.get<std::string>());
}
}  // namespace kernels

namespace planner {

namespace {

/// Returns a path as UTF-8, which JSON strings must be. Paths are arbitrary bytes: each byte
/// becomes the code point of the same value.
std::string encode_path(const std::filesystem::path& path) {
  std::string text;
  for (const char character : path.native()) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x80) text += static_cast<char>(0xC0 | byte >> 6);
    text += static_cast<char>(byte < 0x80 ? byte : 0x80 | (byte & 0x3F));
  }
  return text;
}

/// The inverse of encode_path().
std::filesystem::path decode_path(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_lead_byte = byte >= 0x80 && i + 1 < text.size();
    bytes += static_cast<char>(is_lead_byte ? byte << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F) : byte);
  }
  return bytes;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryCostTable, base_bytes, bytes_per_1024_units, vision_tiles_per_pass,
                                   loss_chunk_rows, limit_bytes, max_samples)

void to_json(nlohmann::json& json, const StepConfig& step_config) {
  json = {{"micro_batch_size", step_config.micro_batch_size},
          {"recompute", step_config.recompute},
          {"vision_tiles_per_pass", step_config.vision_tiles_per_pass},
          {"loss_chunk_rows", step_config.loss_chunk_rows},
          {"expandable_segments", step_config.expandable_segments},
          {"copies_ahead", step_config.copies_ahead},
          {"costs", step_config.memory_cost_table}};
}

void from_json(const nlohmann::json& json, StepConfig& step_config) {
  json.at("micro_batch_size").get_to(step_config.micro_batch_size);
  json.at("recompute").get_to(step_config.recompute);
  json.at("vision_tiles_per_pass").get_to(step_config.vision_tiles_per_pass);
  json.at("loss_chunk_rows").get_to(step_config.loss_chunk_rows);
  json.at("expandable_segments").get_to(step_config.expandable_segments);
  json.at("copies_ahead").get_to(step_config.copies_ahead);
  json.at("costs").get_to(step_config.memory_cost_table);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SampleGroup, shape, count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvaluationBatch, samples, layout, max_new_tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OperationCost, matmul_flops, misaligned_matmul_flops, attention_flops, bytes_moved,
                                   num_kernel_launches, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkSeconds, copies, in_place)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepCosts, total, passes_seconds, link, vision_blocks_forward,
                                   language_blocks_forward, language_attention_forward, optimizer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveCall, bytes, num_ring_phases, group)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepCollectives, gradient_reductions, num_overlapped_reductions, weight_all_gathers,
                                   block_all_gathers, block_reduce_scatters, num_micro_batches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepPeaks, allocated_bytes, reserved_bytes, host_activation_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryTimelinePoint, bytes_by_component, reserved_bytes, tag, is_backward)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DryRunDetail, peak, num_vision_blocks, num_language_blocks, num_parameters,
                                   num_trainable_parameters, host_table_bytes, host_state_bytes, host_block_bytes,
                                   host_gradient_bytes, timeline)

void to_json(nlohmann::json& json, const Job& job) {
  json = {{"model", encode_path(job.model)},
          {"precision", job.precision},
          {"frozen", job.frozen_parts},
          {"lora", job.lora},
          {"quantization", job.quantization},
          {"disabled_kernels", job.disabled_kernels},
          {"optimizer", job.optimizer},
          {"objective", job.objective},
          {"world_size", job.world_size},
          {"rank", job.rank},
          {"nodes", job.num_nodes},
          {"sharding", job.sharding},
          {"per_layer_tables", job.per_layer_tables},
          {"offload", job.offload},
          {"offload_activations", job.offload_activations},
          {"max_host_activation_bytes", job.max_host_activation_bytes},
          {"host_link", job.host_link}};
  // Replaces the path that nlohmann's own conversion wrote, which may not be UTF-8.
  if (job.lora) json["lora"]["adapter"] = encode_path(job.lora->adapter);
}

void from_json(const nlohmann::json& json, Job& job) {
  job.model = decode_path(json.at("model").get<std::string>());
  json.at("precision").get_to(job.precision);
  json.at("frozen").get_to(job.frozen_parts);
  json.at("lora").get_to(job.lora);
  if (job.lora) job.lora->adapter = decode_path(json["lora"].at("adapter").get<std::string>());
  json.at("quantization").get_to(job.quantization);
  json.at("disabled_kernels").get_to(job.disabled_kernels);
  json.at("optimizer").get_to(job.optimizer);
  json.at("objective").get_to(job.objective);
  json.at("world_size").get_to(job.world_size);
  json.at("rank").get_to(job.rank);
  json.at("nodes").get_to(job.num_nodes);
  json.at("sharding").get_to(job.sharding);
  json.at("per_layer_tables").get_to(job.per_layer_tables);
  json.at("offload").get_to(job.offload);
  json.at("offload_activations").get_to(job.offload_activations);
  json.at("max_host_activation_bytes").get_to(job.max_host_activation_bytes);
  json.at("host_link").get_to(job.host_link);
}

void to_json(nlohmann::json& json, const DryRunRequest& request) {
  json = {{"choices", request.step_config},
          {"steps", request.steps},
          {"splits", request.micro_batch_splits},
          {"each_from_empty_cache", request.empty_cache_each_step},
          {"with_costs", request.with_costs},
          {"with_step_seconds", request.with_step_seconds},
          {"with_detail", request.with_detail},
          {"with_timeline", request.with_timeline},
          {"evaluations", request.evaluation_batches},
          {"trains", request.with_training}};
}

void from_json(const nlohmann::json& json, DryRunRequest& request) {
  json.at("choices").get_to(request.step_config);
  json.at("steps").get_to(request.steps);
  json.at("splits").get_to(request.micro_batch_splits);
  json.at("each_from_empty_cache").get_to(request.empty_cache_each_step);
  json.at("with_costs").get_to(request.with_costs);
  json.at("with_step_seconds").get_to(request.with_step_seconds);
  json.at("with_detail").get_to(request.with_detail);
  json.at("with_timeline").get_to(request.with_timeline);
  json.at("evaluations").get_to(request.evaluation_batches);
  json.at("trains").get_to(request.with_training);
}

void to_json(nlohmann::json& json, const DryRunResult& result) {
  json = {{"out_of_memory", result.ran_out_of_memory},
          {"steps", result.steps},
          {"step_seconds", result.step_seconds},
          {"allocation_retries", result.num_allocation_retries},
          {"sums", result.collectives},
          {"costs", result.costs},
          {"detail", result.detail},
          {"seconds", result.seconds},
          {"evaluations", result.evaluation_peaks}};
}

void from_json(const nlohmann::json& json, DryRunResult& result) {
  json.at("out_of_memory").get_to(result.ran_out_of_memory);
  json.at("steps").get_to(result.steps);
  json.at("step_seconds").get_to(result.step_seconds);
  json.at("allocation_retries").get_to(result.num_allocation_retries);
  json.at("sums").get_to(result.collectives);
  json.at("costs").get_to(result.costs);
  json.at("detail").get_to(result.detail);
  json.at("seconds").get_to(result.seconds);
  json.at("evaluations").get_to(result.evaluation_peaks);
}

void to_json(nlohmann::json& json, const LookAheadStep& step) {
  json = {{"step", step.step},
          {"samples", step.samples},
          {"layout", step.layout},
          {"empty_cache_first", step.empty_cache_at_start},
          {"limit_bytes", step.limit_bytes}};
}

void from_json(const nlohmann::json& json, LookAheadStep& step) {
  json.at("step").get_to(step.step);
  json.at("samples").get_to(step.samples);
  json.at("layout").get_to(step.layout);
  json.at("empty_cache_first").get_to(step.empty_cache_at_start);
  json.at("limit_bytes").get_to(step.limit_bytes);
}

void to_json(nlohmann::json& json, const MemoryForecast& forecast) {
  json = {{"step", forecast.step},
          {"fits", forecast.fits},
          {"done", forecast.is_complete},
          {"failed_micro_batch", forecast.failed_micro_batch_index},
          {"layout", forecast.layout},
          {"empty_cache_first", forecast.empty_cache_at_start},
          {"peaks", forecast.peaks},
          {"attempts", forecast.num_attempts},
          {"cpu_seconds", forecast.cpu_seconds}};
}

void from_json(const nlohmann::json& json, MemoryForecast& forecast) {
  json.at("step").get_to(forecast.step);
  json.at("fits").get_to(forecast.fits);
  json.at("done").get_to(forecast.is_complete);
  json.at("failed_micro_batch").get_to(forecast.failed_micro_batch_index);
  json.at("layout").get_to(forecast.layout);
  json.at("empty_cache_first").get_to(forecast.empty_cache_at_start);
  json.at("peaks").get_to(forecast.peaks);
  json.at("attempts").get_to(forecast.num_attempts);
  json.at("cpu_seconds").get_to(forecast.cpu_seconds);
}

}  // namespace planner

}  // namespace vlmtrain

#include "planner/protocol.h"

#include <optional>
#include <string>

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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PixelRow, dtype, channels, depth, height, width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SampleShape, tokens, label_tokens, image_tokens, images, pixel_rows, row, grids,
                                   videos, video_frames, volumes, masks, mask_pictures, mask_side)
}  // namespace data

namespace memory {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Place, component, block)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Peak, event, allocated_bytes, by_component, place, backward)
}  // namespace memory

namespace models {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FrozenParts, vision_tower, projector, language_model, mask_encoder)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RecomputeBlocks, vision, language, language_attention_kept)
}  // namespace models

namespace engine {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TaskSettings, count, weights, gradient_norms, resolve_conflicts, seed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvaluationLayout, vision_tiles_per_pass, loss_chunk_rows)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MaskLossWeights, text, bce, dice)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ObjectiveSettings, tasks, masks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossScaleSettings, initial, dynamic, growth_steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cut, order, sizes, unit)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepLayout, cut, recompute, vision_tiles_per_pass, loss_chunk_rows, copies_ahead)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AdamWSettings, beta1, beta2, epsilon, weight_decay, max_grad_norm, loss_scale,
                                   states, seed)
}  // namespace engine

namespace nn {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoraSettings, rank, alpha, dropout, use_rslora, use_dora, target_modules,
                                   modules_to_save, left_out, adapter, unties_output, vocabulary_rows)
}  // namespace nn

namespace kernels {
void to_json(nlohmann::json& json, const Kernel& kernel) {
  json = name_of(kernel);
}
void from_json(const nlohmann::json& json, Kernel& kernel) {
  kernel = kernel_of(json.get<std::string>());
}
}  // namespace kernels

namespace planner {

namespace {

/// JSON is UTF-8 and a path any bytes: each stands as the character of its number.
std::string path_as_text(const std::filesystem::path& path) {
  std::string text;
  for (const char letter : path.native()) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= 0x80) text += static_cast<char>(0xC0 | byte >> 6);
    text += static_cast<char>(byte < 0x80 ? byte : 0x80 | (byte & 0x3F));
  }
  return text;
}

std::filesystem::path text_as_path(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool leads = byte >= 0x80 && i + 1 < text.size();
    bytes += static_cast<char>(leads ? byte << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F) : byte);
  }
  return bytes;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CostTable, base_bytes, bytes_per_1024, vision_tiles_per_pass, loss_chunk_rows,
                                   limit_bytes, most_samples)

void to_json(nlohmann::json& json, const Choices& choices) {
  json = {{"micro_batch_size", choices.micro_batch_size},
          {"recompute", choices.recompute},
          {"vision_tiles_per_pass", choices.vision_tiles_per_pass},
          {"loss_chunk_rows", choices.loss_chunk_rows},
          {"expandable_segments", choices.expandable_segments},
          {"copies_ahead", choices.copies_ahead},
          {"costs", choices.costs}};
}

void from_json(const nlohmann::json& json, Choices& choices) {
  json.at("micro_batch_size").get_to(choices.micro_batch_size);
  json.at("recompute").get_to(choices.recompute);
  json.at("vision_tiles_per_pass").get_to(choices.vision_tiles_per_pass);
  json.at("loss_chunk_rows").get_to(choices.loss_chunk_rows);
  json.at("expandable_segments").get_to(choices.expandable_segments);
  json.at("copies_ahead").get_to(choices.copies_ahead);
  json.at("costs").get_to(choices.costs);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SampleGroup, shape, count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvaluatedBatch, samples, layout, max_new_tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cost, product_operations, attention_operations, bytes_moved, launches, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepCosts, total, vision_blocks_forward, language_blocks_forward,
                                   language_attention_forward, optimizer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Transfer, bytes, turns, among)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSums, sums, overlapping, gathers, block_gathers, block_sums, passes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepPeaks, allocated_bytes, reserved_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimelinePoint, by_component, reserved_bytes, place, backward)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RehearsalDetail, peak, vision_blocks, language_blocks, total_elements,
                                   trained_elements, timeline)

void to_json(nlohmann::json& json, const Job& job) {
  json = {{"model", path_as_text(job.model)},
          {"precision", job.precision},
          {"frozen", job.frozen},
          {"lora", job.lora},
          {"quantization", job.quantization},
          {"left_out_kernels", job.left_out_kernels},
          {"optimizer", job.optimizer},
          {"objective", job.objective},
          {"world_size", job.world_size},
          {"rank", job.rank},
          {"nodes", job.nodes},
          {"sharding", job.sharding}};
  if (job.lora) json["lora"]["adapter"] = path_as_text(job.lora->adapter);
}

void from_json(const nlohmann::json& json, Job& job) {
  job.model = text_as_path(json.at("model").get<std::string>());
  json.at("precision").get_to(job.precision);
  json.at("frozen").get_to(job.frozen);
  json.at("lora").get_to(job.lora);
  if (job.lora) job.lora->adapter = text_as_path(json["lora"].at("adapter").get<std::string>());
  json.at("quantization").get_to(job.quantization);
  json.at("left_out_kernels").get_to(job.left_out_kernels);
  json.at("optimizer").get_to(job.optimizer);
  json.at("objective").get_to(job.objective);
  json.at("world_size").get_to(job.world_size);
  json.at("rank").get_to(job.rank);
  json.at("nodes").get_to(job.nodes);
  json.at("sharding").get_to(job.sharding);
}

void to_json(nlohmann::json& json, const RehearsalRequest& request) {
  json = {{"choices", request.choices},
          {"steps", request.steps},
          {"cuts", request.cuts},
          {"each_from_empty_cache", request.each_from_empty_cache},
          {"with_costs", request.with_costs},
          {"with_step_seconds", request.with_step_seconds},
          {"with_detail", request.with_detail},
          {"with_timeline", request.with_timeline},
          {"evaluations", request.evaluations},
          {"trains", request.trains}};
}

void from_json(const nlohmann::json& json, RehearsalRequest& request) {
  json.at("choices").get_to(request.choices);
  json.at("steps").get_to(request.steps);
  json.at("cuts").get_to(request.cuts);
  json.at("each_from_empty_cache").get_to(request.each_from_empty_cache);
  json.at("with_costs").get_to(request.with_costs);
  json.at("with_step_seconds").get_to(request.with_step_seconds);
  json.at("with_detail").get_to(request.with_detail);
  json.at("with_timeline").get_to(request.with_timeline);
  json.at("evaluations").get_to(request.evaluations);
  json.at("trains").get_to(request.trains);
}

void to_json(nlohmann::json& json, const Outcome& outcome) {
  json = {{"out_of_memory", outcome.out_of_memory},
          {"steps", outcome.steps},
          {"step_seconds", outcome.step_seconds},
          {"allocation_retries", outcome.allocation_retries},
          {"sums", outcome.sums},
          {"costs", outcome.costs},
          {"detail", outcome.detail},
          {"seconds", outcome.seconds},
          {"evaluations", outcome.evaluations}};
}

void from_json(const nlohmann::json& json, Outcome& outcome) {
  json.at("out_of_memory").get_to(outcome.out_of_memory);
  json.at("steps").get_to(outcome.steps);
  json.at("step_seconds").get_to(outcome.step_seconds);
  json.at("allocation_retries").get_to(outcome.allocation_retries);
  json.at("sums").get_to(outcome.sums);
  json.at("costs").get_to(outcome.costs);
  json.at("detail").get_to(outcome.detail);
  json.at("seconds").get_to(outcome.seconds);
  json.at("evaluations").get_to(outcome.evaluations);
}

void to_json(nlohmann::json& json, const TwinStep& step) {
  json = {{"step", step.step},
          {"samples", step.samples},
          {"layout", step.layout},
          {"release_first", step.release_first},
          {"limit_bytes", step.limit_bytes}};
}

void from_json(const nlohmann::json& json, TwinStep& step) {
  json.at("step").get_to(step.step);
  json.at("samples").get_to(step.samples);
  json.at("layout").get_to(step.layout);
  json.at("release_first").get_to(step.release_first);
  json.at("limit_bytes").get_to(step.limit_bytes);
}

void to_json(nlohmann::json& json, const Foresight& foresight) {
  json = {{"step", foresight.step},
          {"fits", foresight.fits},
          {"done", foresight.done},
          {"failed_micro_batch", foresight.failed_micro_batch},
          {"layout", foresight.layout},
          {"release_first", foresight.release_first},
          {"peaks", foresight.peaks},
          {"attempts", foresight.attempts},
          {"cpu_seconds", foresight.cpu_seconds}};
}

void from_json(const nlohmann::json& json, Foresight& foresight) {
  json.at("step").get_to(foresight.step);
  json.at("fits").get_to(foresight.fits);
  json.at("done").get_to(foresight.done);
  json.at("failed_micro_batch").get_to(foresight.failed_micro_batch);
  json.at("layout").get_to(foresight.layout);
  json.at("release_first").get_to(foresight.release_first);
  json.at("peaks").get_to(foresight.peaks);
  json.at("attempts").get_to(foresight.attempts);
  json.at("cpu_seconds").get_to(foresight.cpu_seconds);
}

}  // namespace planner

}  // namespace vlmtrain

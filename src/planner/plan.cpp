#include "vlmtrain/planner/plan.h"

#include <fmt/ranges.h>

namespace vlmtrain::planner {

namespace {

using memory::Component;

nlohmann::ordered_json recompute_json(const models::RecomputeBlocks& blocks) {
  return {{"language_blocks", blocks.language}, {"vision_blocks", blocks.vision}};
}

nlohmann::ordered_json option_json(const Option& option, const Plan& plan) {
  return {{"micro_batch_size", option.choices.micro_batch_size},
          {"gradient_accumulation_steps", plan.workload.samples_per_rank() / option.choices.micro_batch_size},
          {"recompute", recompute_json(option.choices.recompute)},
          {"vision_tiles_per_pass", option.choices.vision_tiles_per_pass},
          {"loss_chunk_rows", option.choices.loss_chunk_rows},
          {"reserved_peak_bytes", option.peaks.reserved_bytes},
          {"total_bytes", plan.total_bytes(option)},
          {"step_seconds", option.step_seconds},
          {"tokens_per_second", option.tokens_per_second},
          {"fits", option.fits},
          {"rehearsed", option.rehearsed}};
}

nlohmann::ordered_json memory_json(const Plan& plan) {
  const auto bytes = [&](Component component) { return plan.detail.peak.by_component[static_cast<size_t>(component)]; };
  const int64_t vision = bytes(Component::kVision);
  const int64_t language = bytes(Component::kLanguage);
  const int64_t loss = bytes(Component::kLoss);
  const int64_t input = bytes(Component::kInput) + bytes(Component::kOther);
  const StepPeaks& peaks = plan.chosen.peaks;
  return {{"weights_bytes", bytes(Component::kWeights)},
          {"gradients_bytes", bytes(Component::kGradients)},
          {"optimizer_bytes", bytes(Component::kOptimizer)},
          {"activations_bytes", vision + language + loss + input},
          {"workspace_bytes", bytes(Component::kWorkspace)},
          {"context_bytes", plan.limit.context_bytes},
          {"communication_bytes", plan.limit.communication_bytes},
          {"allocated_peak_bytes", peaks.allocated_bytes},
          {"reserved_peak_bytes", peaks.reserved_bytes},
          {"total_bytes", plan.total_bytes()},
          {"vision_activations_bytes", vision},
          {"language_activations_bytes", language},
          {"loss_bytes", loss},
          {"input_bytes", input},
          {"fragmentation_bytes", peaks.reserved_bytes - peaks.allocated_bytes},
          {"context_measured", plan.card.context_measured}};
}

nlohmann::ordered_json peak_json(const memory::Peak& peak) {
  return {{"during", memory::name_of(peak.place.component)},
          {"block", peak.place.block < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.place.block)},
          {"pass", peak.backward ? "backward" : "forward"}};
}

nlohmann::ordered_json cost_json(const Cost& cost) {
  return {{"product_operations", cost.product_operations},
          {"attention_operations", cost.attention_operations},
          {"bytes_moved", cost.bytes_moved},
          {"launches", cost.launches},
          {"seconds", cost.seconds}};
}

}  // namespace

std::string Suggestion::text() const {
  if (arguments.empty()) return note;
  return fmt::format("{}: {}", fmt::join(arguments, " "), note);
}

nlohmann::ordered_json Plan::to_json() const {
  const Choices& choices = chosen.choices;
  const data::SampleShape& largest = worst.shapes.front();
  auto others = nlohmann::ordered_json::array();
  for (const auto& option : alternatives) others.push_back(option_json(option, *this));
  auto remedies = nlohmann::ordered_json::array();
  for (const auto& suggestion : suggestions) {
    remedies.push_back(
        {{"text", suggestion.text()},
         {"makes_it_fit", suggestion.makes_it_fit},
         {"arguments", suggestion.arguments},
         {"total_bytes", suggestion.total_bytes > 0 ? nlohmann::ordered_json(suggestion.total_bytes) : nullptr}});
  }
  return {{"fits", fits},
          {"model", model},
          {"precision", engine::name_of(job.precision)},
          {"optimizer_states", engine::name_of(job.optimizer_states)},
          {"finetune", job.lora ? "lora" : "full"},
          {"quantization", nn::name_of(job.quantization)},
          {"micro_batch_size", choices.micro_batch_size},
          {"gradient_accumulation_steps", accumulation_steps()},
          {"global_batch_size", workload.global_batch_size},
          {"world_size", workload.world_size},
          {"recompute", recompute_json(choices.recompute)},
          {"blocks", recompute_json({detail.vision_blocks, detail.language_blocks})},
          {"vision_tiles_per_pass", choices.vision_tiles_per_pass},
          {"loss_chunk_rows", choices.loss_chunk_rows},
          {"expandable_segments", choices.expandable_segments},
          {"tokens_per_sample", largest.tokens},
          {"tiles_per_sample", largest.tiles},
          {"images_per_sample", largest.images - largest.videos},
          {"videos_per_sample", largest.videos},
          {"video_frames_per_sample", largest.video_frames},
          {"label_tokens_per_sample", largest.label_tokens},
          {"worst_sample", worst.first_id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(worst.first_id)},
          {"card", card.description},
          {"card_bytes", limit.card_bytes},
          {"others_bytes", card.others_bytes},
          {"mode", name_of(mode)},
          {"margin_bytes", limit.margin_bytes},
          {"margin_percent", limit.margin_percent},
          {"limit_bytes", limit.limit_bytes},
          {"parameters", detail.total_elements},
          {"trained_parameters", detail.trained_elements},
          {"memory", memory_json(*this)},
          {"peak", peak_json(detail.peak)},
          {"step_seconds", chosen.step_seconds},
          {"tokens_per_second", chosen.tokens_per_second},
          {"rehearsed_step_cost", cost_json(costs.total)},
          {"predicted",
           "step_seconds and tokens_per_second are computed from counted operations and data sheets, not measured"},
          {"alternatives", others},
          {"suggestions", remedies},
          {"rehearsals", effort.rehearsals},
          {"rehearsal_seconds", effort.rehearsal_seconds},
          {"plan_seconds", effort.seconds}};
}

}  // namespace vlmtrain::planner

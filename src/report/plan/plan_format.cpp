#include "report/plan/plan_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::report {

namespace {

using memory::Component;

/// Returns whether the model has a vision tower; text-only models have none.
bool has_vision_tower(const planner::DryRunDetail& detail) {
  return detail.num_vision_blocks > 0;
}

/// Returns "vision all" or "vision 9".
std::string format_recomputed_tower(const char* tower, int64_t num_recomputed_blocks, int64_t num_blocks) {
  return num_recomputed_blocks == num_blocks ? fmt::format("{} all", tower)
                                             : fmt::format("{} {}", tower, num_recomputed_blocks);
}

std::string format_model(const planner::Plan& plan) {
  const auto& detail = plan.detail;
  std::vector<std::string> frozen_parts;
  if (plan.job.frozen_parts.vision_tower) frozen_parts.emplace_back("vision tower");
  if (plan.job.frozen_parts.projector) frozen_parts.emplace_back("projector");
  if (plan.job.frozen_parts.language_model) frozen_parts.emplace_back("language model");
  const std::string trained_parameters_text =
      detail.num_trainable_parameters == detail.num_parameters
          ? "all trained"
          : fmt::format("{} trained", format_rounded_count(detail.num_trainable_parameters));
  const bool is_quantized = plan.job.quantization != nn::Quantization::kNone;
  const engine::OptimizerStateDtype states = plan.job.optimizer.state_dtype;
  const engine::OptimizerKind optimizer = plan.job.optimizer.kind;
  return fmt::format("{}, {} parameters, {}{}, {}{}{}{}", to_printable(plan.model),
                     format_rounded_count(detail.num_parameters), trained_parameters_text,
                     frozen_parts.empty() ? "" : fmt::format(" (frozen: {})", fmt::join(frozen_parts, ", ")),
                     engine::to_string(plan.job.precision),
                     is_quantized ? fmt::format(", frozen Linears in {}", nn::to_string(plan.job.quantization)) : "",
                     optimizer == engine::kDefaultOptimizer
                         ? ""
                         : fmt::format(", optimizer {}", engine::get_optimizer_info(optimizer).name),
                     states == engine::OptimizerStateDtype::kFp32
                         ? ""
                         : fmt::format(", optimizer states in {}", engine::to_string(states)));
}

std::string format_worst_sample(const planner::SampleBatch& worst_batch) {
  const data::SampleShape& shape = worst_batch.shapes.front();
  std::string text = worst_batch.first_sample_id.empty()
                         ? ""
                         : fmt::format("worst is {}: ", to_printable(worst_batch.first_sample_id));
  text += pluralize(shape.tokens, "token");
  if (shape.num_media() > 0) {
    const char* const media = shape.num_volumes == shape.num_media()  ? "volumes"
                              : shape.num_videos == 0                 ? "images"
                              : shape.num_videos == shape.num_media() ? "videos"
                                                                      : "images and videos";
    text += fmt::format(" ({} of {})", format_with_commas(shape.image_tokens), media);
  }
  text += fmt::format(", {} label tokens; {}", format_with_commas(shape.label_tokens), data::describe_media(shape));
  if (shape.num_media() > 0 && shape.row.depth == 0) {  // for volumes, describe_media() includes it
    text += fmt::format(" in {}", shape.patch_grids.empty()
                                      ? fmt::format("{} of {}x{}", pluralize(shape.pixel_rows, "tile"), shape.row.width,
                                                    shape.row.height)
                                      : format_with_commas(shape.pixel_rows) + " patches");
  }
  return text;
}

std::string format_gpu(const planner::Plan& plan) {
  std::string text = to_printable(plan.gpu().description);
  if (plan.gpu().other_process_bytes > 0) {
    text += fmt::format(", of which other processes use {}", format_gigabytes(plan.gpu().other_process_bytes));
  }
  if (plan.limit.allowed_bytes < plan.gpu().memory_bytes - plan.gpu().other_process_bytes) {
    text += fmt::format(", of which {} are allowed ({})", format_gigabytes(plan.limit.allowed_bytes),
                        keys::memory::kLimitGb);
  }
  return text;
}

std::string format_memory_margin(const planner::Plan& plan) {
  return fmt::format("{} kept free, {:g} % of the GPU (mode {})", format_gigabytes(plan.limit.margin_bytes),
                     plan.limit.margin_percent, planner::to_string(plan.mode));
}

std::string format_cuda_context(const planner::Plan& plan) {
  std::string text = fmt::format("{} for CUDA outside PyTorch's memory{}", format_gigabytes(plan.limit.context_bytes),
                                 plan.gpu().is_context_measured ? "" : " (not measured)");
  if (plan.limit.communication_bytes > 0) {
    text += fmt::format(", {} for NCCL (estimated)", format_gigabytes(plan.limit.communication_bytes));
  }
  return text;
}

/// Returns the predicted communication, and the rank that needs the most memory.
std::string format_communication(const planner::Plan& plan) {
  const planner::CommunicationEstimate& communication = *plan.communication_estimate;
  std::string text =
      fmt::format("{}{} over {}; a step reduces {}{} in {}: predicted {}, of which {} not overlapped",
                  pluralize(plan.workload.world_size, "rank"),
                  plan.workload.num_nodes > 1 ? fmt::format(" on {} nodes", plan.workload.num_nodes) : "",
                  communication.interconnect.to_string(),
                  communication.collectives.weight_all_gathers.empty() ? "" : "and gathers ",
                  format_bytes(communication.bytes()), pluralize(communication.count_collectives(), "call"),
                  format_seconds(communication.seconds), format_seconds(communication.exposed_seconds));
  if (plan.rank_step_peaks.empty()) return text;
  const auto peak_rank_step = std::ranges::max_element(
      plan.rank_step_peaks, {}, [](const planner::RankStepPeaks& step) { return step.peaks.reserved_bytes; });
  return text +
         fmt::format("; in the sampled steps rank {} needs the most memory, {} (the worst step fits on every rank)",
                     peak_rank_step->rank,
                     format_gigabytes(peak_rank_step->peaks.reserved_bytes + plan.limit.overhead_bytes()));
}

/// Returns the page-locked host memory and its contents.
std::string format_host_memory(const planner::Plan& plan) {
  std::vector<std::string_view> contents;
  if (plan.detail.host_block_bytes > 0) contents.emplace_back("weights");
  if (plan.detail.host_gradient_bytes > 0) contents.emplace_back("gradients");
  if (plan.detail.host_state_bytes > 0) contents.emplace_back("masters and moments");
  if (plan.peaks().host_activation_bytes > 0) contents.emplace_back("inputs of recomputed blocks");
  if (plan.detail.host_table_bytes > 0) contents.emplace_back("per-layer embeddings");
  return fmt::format("{} of page-locked host memory{} for {}", format_gigabytes(plan.host_bytes()),
                     plan.workload.world_size > 1 ? " per rank" : "", fmt::join(contents, ", "));
}

std::string format_step_config(const planner::Plan& plan) {
  const planner::StepConfig& step_config = plan.best_estimate.step_config;
  const std::string vision_pass = has_vision_tower(plan.detail) ? format_vision_pass(plan) + ", " : "";
  return fmt::format("{}loss in chunks of {}{}", vision_pass, pluralize(step_config.loss_chunk_rows, "row"),
                     step_config.expandable_segments ? ", expandable segments" : "");
}

std::string format_evaluation(const planner::EvaluationPlan& evaluation) {
  const std::string fallback_note = evaluation.fits             ? ""
                                    : evaluation.batch_size > 1 ? "; batches that do not fit are split"
                                                                : "; samples that do not fit are dropped";
  return fmt::format("batches of {}, {} reserved with the training state{}", evaluation.batch_size,
                     format_gigabytes(evaluation.peaks.reserved_bytes), fallback_note);
}

std::string format_memory_component(const memory::MemoryTag& tag) {
  switch (tag.component) {
    case Component::kVision:
      return tag.block < 0 ? "vision tower outside its blocks" : fmt::format("vision block {}", tag.block);
    case Component::kLanguage:
      return tag.block < 0 ? "language model outside its blocks" : fmt::format("language block {}", tag.block);
    case Component::kMasks:
      return tag.block < 0 ? "mask encoder and decoder outside their blocks"
                           : fmt::format("mask encoder block {}", tag.block);
    case Component::kOther:
      return "other";
    default:
      return std::string(memory::to_string(tag.component));
  }
}

std::string format_average_step(const planner::AverageStepEstimate& average) {
  std::vector<std::string> sample_groups;
  sample_groups.reserve(average.samples.size());
  for (const auto& [shape, count] : average.samples) {
    sample_groups.push_back(fmt::format("{} of {}", format_with_commas(count), data::describe_media(shape)));
  }
  return fmt::format(
      "samples of an average step: {}; predicted {}, {:.3g} samples/s, {} tokens/s, {} of memory reserved",
      fmt::join(sample_groups, ", "), format_seconds(average.step_seconds), average.samples_per_second,
      format_with_commas(std::llround(average.tokens_per_second)), format_gigabytes(average.peaks.reserved_bytes));
}

}  // namespace

std::string format_gigabytes(int64_t bytes) {
  // Smaller values would round to 0.0 GB.
  constexpr int64_t kMinDisplayedBytes = 50'000'000;
  if (bytes > 0 && bytes < kMinDisplayedBytes) return "<0.1 GB";
  return fmt::format("{:.1f} GB", to_gigabytes(bytes));
}

std::string format_seconds(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.0f} ms", seconds * 1000);
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : seconds < 100 ? 1 : 0);
}

std::string format_recompute(const models::RecomputeBlockCounts& blocks, const planner::DryRunDetail& detail) {
  if (blocks == models::RecomputeBlockCounts{}) return "none";
  if (blocks == models::RecomputeBlockCounts{detail.num_vision_blocks, detail.num_language_blocks}) return "all";
  std::vector<std::string> recomputed_towers;
  if (blocks.vision > 0)
    recomputed_towers.push_back(format_recomputed_tower("vision", blocks.vision, detail.num_vision_blocks));
  if (blocks.language > 0)
    recomputed_towers.push_back(format_recomputed_tower("language", blocks.language, detail.num_language_blocks));
  if (blocks.language_selective > 0) recomputed_towers.back() += fmt::format("/{}", blocks.language_selective);
  return fmt::format("{}", fmt::join(recomputed_towers, ", "));
}

std::string format_vision_pass(const planner::Plan& plan) {
  const int64_t tiles = plan.best_estimate.step_config.vision_tiles_per_pass;
  const data::SampleShape& shape = plan.worst_batch.shapes.front();
  if (shape.patch_grids.empty()) {
    return tiles == 0 ? "all tiles in one vision pass" : fmt::format("{} per vision pass", pluralize(tiles, "tile"));
  }
  if (tiles == 0) return "all patches in one vision pass";
  const bool is_one_image_per_pass =
      std::all_of(shape.patch_grids.begin(), shape.patch_grids.end(),
                  [tiles](const data::PatchGrid& grid) { return grid.patches_per_frame() >= tiles; });
  return is_one_image_per_pass ? "one image per vision pass"
                               : fmt::format("{} patches per vision pass", format_with_commas(tiles));
}

std::string format_training_method(const planner::Plan& plan) {
  if (plan.job.lora) return fmt::format("LoRA of rank {}", plan.job.lora->rank);
  const auto& frozen_parts = plan.job.frozen_parts;
  return frozen_parts.vision_tower || frozen_parts.projector || frozen_parts.language_model || frozen_parts.mask_encoder
             ? "partial fine-tuning"
             : "full fine-tuning";
}

std::string format_memory_tag(const memory::MemoryTag& tag, bool backward) {
  const bool is_pass_component = tag.component == Component::kVision || tag.component == Component::kLanguage ||
                                 tag.component == Component::kMasks || tag.component == Component::kLoss;
  std::string text = format_memory_component(tag);
  if (backward) return text + ", backward pass";
  return is_pass_component ? text + ", forward pass" : text;
}

Table make_plan_facts(const planner::Plan& plan) {
  Table facts{.alignment = "ll"};
  const auto add = [&](const char* name, const std::string& text) { facts.rows.push_back({{name, text}}); };
  add("model", format_model(plan));
  add("sample", format_worst_sample(plan.worst_batch));
  if (plan.average_step_estimate) add("average", format_average_step(*plan.average_step_estimate));
  add("GPU", format_gpu(plan));
  add("margin", format_memory_margin(plan));
  add("context", format_cuda_context(plan));
  if (plan.host_bytes() > 0) add("host", format_host_memory(plan));
  add("step", format_step_config(plan));
  if (plan.evaluation) add("eval", format_evaluation(*plan.evaluation));
  if (plan.communication_estimate) add("ranks", format_communication(plan));
  return facts;
}

namespace {

/// Returns the plan's alternatives, with the best estimate inserted by micro-batch size if it is
/// not among them. It may differ from them, for example in smaller vision passes.
std::vector<planner::StepEstimate> list_alternatives(const planner::Plan& plan) {
  std::vector<planner::StepEstimate> estimates = plan.alternatives;
  const auto is_best = [&](const planner::StepEstimate& estimate) {
    return estimate.step_config == plan.best_estimate.step_config;
  };
  if (std::any_of(estimates.begin(), estimates.end(), is_best)) return estimates;
  const auto position = std::find_if(estimates.begin(), estimates.end(), [&](const planner::StepEstimate& estimate) {
    return estimate.step_config.micro_batch_size >= plan.best_estimate.step_config.micro_batch_size;
  });
  estimates.insert(position, plan.best_estimate);
  return estimates;
}

/// Returns the indices of the rows to show, in ascending order: the best config, then those with
/// the closest micro-batch sizes by ratio.
std::vector<size_t> select_alternative_rows(const std::vector<planner::StepEstimate>& estimates,
                                            const planner::StepConfig& best_config, size_t max_rows) {
  const auto compute_config_distance = [&](size_t index) {
    const auto& step_config = estimates[index].step_config;
    const auto ratio =
        static_cast<double>(step_config.micro_batch_size) / static_cast<double>(best_config.micro_batch_size);
    return std::tuple(step_config != best_config, std::abs(std::log(ratio)));
  };
  std::vector<size_t> indices(estimates.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::stable_sort(indices.begin(), indices.end(), [&](size_t left, size_t right) {
    return compute_config_distance(left) < compute_config_distance(right);
  });
  indices.resize(std::min(indices.size(), max_rows));
  std::sort(indices.begin(), indices.end());
  return indices;
}

/// Returns the passes of the best config if any estimate has others; empty if all are equal.
std::string describe_best_config_passes(const std::vector<planner::StepEstimate>& estimates,
                                        const planner::Plan& plan) {
  const planner::StepConfig& best_config = plan.best_estimate.step_config;
  const auto has_other_passes = [&](const planner::StepEstimate& estimate) {
    return estimate.step_config.vision_tiles_per_pass != best_config.vision_tiles_per_pass ||
           estimate.step_config.loss_chunk_rows != best_config.loss_chunk_rows;
  };
  if (std::none_of(estimates.begin(), estimates.end(), has_other_passes)) return {};
  const std::string vision_pass = has_vision_tower(plan.detail) ? format_vision_pass(plan) + " and " : "";
  return fmt::format("{}loss chunks of {}", vision_pass, pluralize(best_config.loss_chunk_rows, "row"));
}

}  // namespace

AlternativesTable make_alternatives_table(const planner::Plan& plan, size_t max_rows) {
  const auto estimates = list_alternatives(plan);
  const auto indices = select_alternative_rows(estimates, plan.best_estimate.step_config, max_rows);
  AlternativesTable alternatives{
      .table = {.headers = {"", "micro-batch", "recompute", "memory", "step", "tokens/s", "fits"}, .alignment = "lrl"},
      .num_hidden_alternatives = estimates.size() - indices.size(),
      .best_config_passes = describe_best_config_passes(estimates, plan)};
  for (const size_t index : indices) {
    const planner::StepEstimate& estimate = estimates[index];
    const bool is_best = estimate.step_config == plan.best_estimate.step_config;
    const std::string prefix = estimate.is_from_dry_run ? "" : "~";
    const int64_t size = estimate.step_config.micro_batch_size;
    alternatives.table.rows.push_back(
        {.cells = {is_best ? ">" : "", fmt::format("{} x {}", size, plan.workload.samples_per_rank() / size),
                   format_recompute(estimate.step_config.recompute, plan.detail),
                   prefix + format_gigabytes(plan.total_bytes(estimate)),
                   prefix + format_seconds(estimate.step_seconds),
                   prefix + format_with_commas(std::llround(estimate.tokens_per_second)), estimate.fits ? "yes" : "no"},
         .emphasis = is_best         ? Emphasis::kStrong
                     : estimate.fits ? Emphasis::kNormal
                                     : Emphasis::kFaint});
    alternatives.has_interpolated_rows = alternatives.has_interpolated_rows || !estimate.is_from_dry_run;
  }
  return alternatives;
}

std::vector<MemoryRow> make_memory_rows(const planner::Plan& plan) {
  using memory::Component;
  using Kind = MemoryRow::Kind;
  const memory::ComponentBytes& peak = plan.detail.peak.bytes_by_component;
  const auto bytes = [&](Component component) { return peak[static_cast<size_t>(component)]; };
  const int64_t allocated = std::accumulate(peak.begin(), peak.end(), int64_t{0});
  std::vector<MemoryRow> rows;
  for (const auto component : {Component::kWeights, Component::kGradients, Component::kOptimizer, Component::kVision,
                               Component::kLanguage, Component::kMasks, Component::kLoss}) {
    if (component == Component::kMasks && bytes(component) == 0) continue;
    if (component == Component::kVision && bytes(component) == 0 && !has_vision_tower(plan.detail)) continue;
    rows.push_back({std::string(memory::to_string(component)), bytes(component)});
  }
  rows.push_back({"input and other", bytes(Component::kInput) + bytes(Component::kOther)});
  rows.push_back({"workspace", bytes(Component::kWorkspace)});
  rows.push_back({"fragmentation", plan.best_estimate.peaks.reserved_bytes - allocated});
  rows.push_back({plan.gpu().is_context_measured ? "context" : "context (not measured)", plan.limit.context_bytes});
  if (plan.limit.communication_bytes > 0) rows.push_back({"NCCL (estimated)", plan.limit.communication_bytes});
  const int64_t evaluation_bytes = compute_evaluation_bytes(plan);
  if (evaluation_bytes > 0) rows.push_back({"evaluations", evaluation_bytes});
  const int64_t free_bytes = plan.limit.allowed_bytes - plan.total_bytes() - plan.limit.margin_bytes;
  if (free_bytes >= 0) rows.push_back({"free", free_bytes, Kind::kFree});
  rows.push_back({fmt::format("margin ({:g} %)", plan.limit.margin_percent), plan.limit.margin_bytes, Kind::kMargin});
  return rows;
}

int64_t compute_evaluation_bytes(const planner::Plan& plan) {
  return plan.total_bytes() - plan.training_bytes();
}

int64_t compute_shortfall_bytes(const planner::Plan& plan) {
  return std::max<int64_t>(0, plan.total_bytes() + plan.limit.margin_bytes - plan.limit.allowed_bytes);
}

}  // namespace vlmtrain::report

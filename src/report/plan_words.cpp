#include "report/plan_words.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/engine/options.h"

namespace vlmtrain::report {

namespace {

using memory::Component;

std::string tower_words(const char* tower, int64_t recomputed, int64_t blocks) {
  return recomputed == blocks ? fmt::format("{} all", tower) : fmt::format("{} {}", tower, recomputed);
}

std::string model_words(const planner::Plan& plan) {
  const auto& detail = plan.detail;
  std::vector<std::string> frozen;
  if (plan.job.frozen.vision_tower) frozen.emplace_back("vision tower");
  if (plan.job.frozen.projector) frozen.emplace_back("projector");
  if (plan.job.frozen.language_model) frozen.emplace_back("language model");
  const std::string trained = detail.trained_elements == detail.total_elements
                                  ? "all trained"
                                  : fmt::format("{} trained", number_words(detail.trained_elements));
  const bool quantized = plan.job.quantization != nn::Quantization::kNone;
  const engine::OptimizerStates states = plan.job.optimizer.states;
  return fmt::format(
      "{}, {} parameters, {}{}, {}{}{}", printable(plan.model), number_words(detail.total_elements), trained,
      frozen.empty() ? "" : fmt::format(" (frozen: {})", fmt::join(frozen, ", ")), engine::name_of(plan.job.precision),
      quantized ? fmt::format(", frozen Linears in {}", nn::name_of(plan.job.quantization)) : "",
      states == engine::OptimizerStates::kFp32 ? "" : fmt::format(", optimizer states in {}", engine::name_of(states)));
}

std::string sample_words(const planner::SampleBatch& worst) {
  const data::SampleShape& shape = worst.shapes.front();
  std::string text = worst.first_id.empty() ? "" : fmt::format("worst is {}: ", printable(worst.first_id));
  text += counted(shape.tokens, "token");
  if (shape.images > 0) {
    const char* const media = shape.volumes == shape.images  ? "volumes"
                              : shape.videos == 0            ? "images"
                              : shape.videos == shape.images ? "videos"
                                                             : "images and videos";
    text += fmt::format(" ({} of {})", grouped(shape.image_tokens), media);
  }
  text += fmt::format(", {} learnt; {}", grouped(shape.label_tokens), data::media_words(shape));
  if (shape.images > 0 && shape.row.depth == 0) {  // of volumes the media's words say it
    text += fmt::format(" in {}", shape.grids.empty() ? fmt::format("{} of {}x{}", counted(shape.pixel_rows, "tile"),
                                                                    shape.row.width, shape.row.height)
                                                      : grouped(shape.pixel_rows) + " patches");
  }
  return text;
}

std::string card_words(const planner::Plan& plan) {
  std::string text = printable(plan.card.description);
  if (plan.card.others_bytes > 0) {
    text += fmt::format(", of which other processes hold {}", gigabytes(plan.card.others_bytes));
  }
  if (plan.limit.card_bytes < plan.card.memory_bytes - plan.card.others_bytes) {
    text += fmt::format(", of which {} are allowed (memory.limit_gb)", gigabytes(plan.limit.card_bytes));
  }
  return text;
}

std::string margin_words(const planner::Plan& plan) {
  return fmt::format("{} kept free, {:g} % of the card (mode {})", gigabytes(plan.limit.margin_bytes),
                     plan.limit.margin_percent, planner::name_of(plan.mode));
}

std::string context_words(const planner::Plan& plan) {
  std::string text = fmt::format("{} for CUDA beside PyTorch's memory{}", gigabytes(plan.limit.context_bytes),
                                 plan.card.context_measured ? "" : " (not measured)");
  if (plan.limit.communication_bytes > 0) {
    text += fmt::format(", {} for NCCL (estimated)", gigabytes(plan.limit.communication_bytes));
  }
  return text;
}

/// What is predicted of ranks; whose part of the data needs most.
std::string rank_words(const planner::Plan& plan) {
  const planner::Communication& told = *plan.communication;
  std::string text =
      fmt::format("{}{} over {}; a step adds up {}{} in {}: predicted {}, of which {} not behind a pass",
                  counted(plan.workload.world_size, "rank"),
                  plan.workload.nodes > 1 ? fmt::format(" on {} machines", plan.workload.nodes) : "",
                  told.links.words(), told.sums.gathers.empty() ? "" : "and gathers ", format_bytes(told.bytes()),
                  counted(told.calls(), "call"), seconds_words(told.seconds), seconds_words(told.waiting_seconds));
  if (plan.rank_steps.empty()) return text;
  const auto most = std::ranges::max_element(plan.rank_steps, {},
                                             [](const planner::RankStep& step) { return step.peaks.reserved_bytes; });
  return text + fmt::format("; of the drawn steps rank {} needs most, {} (all ranks hold the worst step)", most->rank,
                            gigabytes(most->peaks.reserved_bytes + plan.beside_bytes()));
}

std::string step_words(const planner::Plan& plan) {
  const planner::Choices& choices = plan.chosen.choices;
  return fmt::format("{}, loss in chunks of {}{}", vision_pass_words(plan), counted(choices.loss_chunk_rows, "row"),
                     choices.expandable_segments ? ", expandable segments" : "");
}

std::string part_words(const memory::Place& place) {
  switch (place.component) {
    case Component::kVision:
      return place.block < 0 ? "vision tower outside its blocks" : fmt::format("vision block {}", place.block);
    case Component::kLanguage:
      return place.block < 0 ? "language model outside its blocks" : fmt::format("language block {}", place.block);
    case Component::kMasks:
      return place.block < 0 ? "mask encoder and decoder outside their blocks"
                             : fmt::format("mask encoder block {}", place.block);
    case Component::kOther:
      return "elsewhere";
    default:
      return std::string(memory::name_of(place.component));
  }
}

std::string average_words(const planner::AverageStep& average) {
  std::vector<std::string> kinds;
  kinds.reserve(average.samples.size());
  for (const auto& [shape, count] : average.samples) {
    kinds.push_back(fmt::format("{} of {}", grouped(count), data::media_words(shape)));
  }
  return fmt::format("samples of a usual step: {}; predicted {}, {:.3g} samples/s, {} tokens/s, {} of memory reserved",
                     fmt::join(kinds, ", "), seconds_words(average.step_seconds), average.samples_per_second,
                     grouped(std::llround(average.tokens_per_second)), gigabytes(average.peaks.reserved_bytes));
}

}  // namespace

std::string gigabytes(int64_t bytes) {
  constexpr int64_t kRoundsToNothing = 50'000'000;
  if (bytes > 0 && bytes < kRoundsToNothing) return "<0.1 GB";
  return fmt::format("{:.1f} GB", in_gigabytes(bytes));
}

std::string seconds_words(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.0f} ms", seconds * 1000);
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : seconds < 100 ? 1 : 0);
}

std::string recompute_words(const models::RecomputeBlocks& blocks, const planner::RehearsalDetail& detail) {
  if (blocks == models::RecomputeBlocks{}) return "none";
  if (blocks == models::RecomputeBlocks{detail.vision_blocks, detail.language_blocks}) return "all";
  std::vector<std::string> towers;
  if (blocks.vision > 0) towers.push_back(tower_words("vision", blocks.vision, detail.vision_blocks));
  if (blocks.language > 0) towers.push_back(tower_words("language", blocks.language, detail.language_blocks));
  if (blocks.language_attention_kept > 0) towers.back() += fmt::format("/{}", blocks.language_attention_kept);
  return fmt::format("{}", fmt::join(towers, ", "));
}

std::string vision_pass_words(const planner::Plan& plan) {
  const int64_t tiles = plan.chosen.choices.vision_tiles_per_pass;
  const data::SampleShape& shape = plan.worst.shapes.front();
  if (shape.grids.empty()) {
    return tiles == 0 ? "all tiles in one vision pass" : fmt::format("{} a vision pass", counted(tiles, "tile"));
  }
  if (tiles == 0) return "all patches in one vision pass";
  const bool one_by_one = std::all_of(shape.grids.begin(), shape.grids.end(), [tiles](const data::PatchGrid& grid) {
    return grid.patches_per_frame() >= tiles;
  });
  return one_by_one ? "one picture a vision pass" : fmt::format("{} patches a vision pass", grouped(tiles));
}

std::string training_words(const planner::Plan& plan) {
  if (plan.job.lora) return fmt::format("LoRA of rank {}", plan.job.lora->rank);
  const auto& frozen = plan.job.frozen;
  return frozen.vision_tower || frozen.projector || frozen.language_model || frozen.mask_encoder ? "fine-tuning in part"
                                                                                                 : "full fine-tuning";
}

std::string place_words(const memory::Place& place, bool backward) {
  const bool in_a_pass = place.component == Component::kVision || place.component == Component::kLanguage ||
                         place.component == Component::kMasks || place.component == Component::kLoss;
  std::string text = part_words(place);
  if (backward) return text + ", backward pass";
  return in_a_pass ? text + ", forward pass" : text;
}

std::vector<Fact> plan_facts(const planner::Plan& plan) {
  std::vector<Fact> facts{{"model", model_words(plan)}, {"sample", sample_words(plan.worst)}};
  if (plan.average) facts.push_back({"average", average_words(*plan.average)});
  facts.insert(facts.end(), {{"card", card_words(plan)},
                             {"margin", margin_words(plan)},
                             {"context", context_words(plan)},
                             {"step", step_words(plan)}});
  if (plan.communication) facts.push_back({"ranks", rank_words(plan)});
  return facts;
}

}  // namespace vlmtrain::report

#include "planner/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace vlmtrain::planner {

namespace {

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

/// The sample with one tile an image, the whole picture, and the text as it is.
data::SampleShape with_one_tile_an_image(data::SampleShape shape) {
  if (shape.tiles <= shape.images) return shape;
  const int64_t features_per_tile = shape.image_tokens / shape.tiles;
  const int64_t removed = (shape.tiles - shape.images) * features_per_tile;
  shape.tiles = shape.images;
  shape.image_tokens -= removed;
  shape.tokens -= removed;
  return shape;
}

/// The smallest card of the table that holds so much beside its context and the mode's margin.
const memory::Gpu* smallest_card_for(int64_t reserved_bytes, Mode mode, int64_t world_size) {
  const memory::Gpu* smallest = nullptr;
  for (const auto& gpu : memory::gpus()) {
    const auto limit = limit_of(card_by_name(std::string(gpu.name)), mode, std::nullopt, world_size);
    if (limit.limit_bytes < reserved_bytes) continue;
    if (smallest == nullptr || gpu.memory_bytes < smallest->memory_bytes) smallest = &gpu;
  }
  return smallest;
}

/// A change of the job or of the sample, in the words of the configuration.
struct Change {
  std::string text;
  Job job;
  data::SampleShape shape;
};

std::vector<Change> changes(const PlanRequest& request, const Plan& plan) {
  const data::SampleShape& shape = plan.worst.shapes.front();
  std::vector<Change> list;
  const auto smaller = with_one_tile_an_image(shape);
  if (smaller != shape) {
    list.push_back({fmt::format("smaller images (data.image_max_pixels): {} tiles a sample instead of {}",
                                smaller.tiles, shape.tiles),
                    request.job, smaller});
  }
  const auto freezing = [&](const char* text, bool models::FrozenParts::*part) {
    if (request.job.frozen.*part) return;
    Job job = request.job;
    job.frozen.*part = true;
    const auto& frozen = job.frozen;
    if (frozen.vision_tower && frozen.projector && frozen.language_model) return;
    list.push_back({text, job, shape});
  };
  freezing("model.freeze_vision_tower=true", &models::FrozenParts::vision_tower);
  freezing("model.freeze_language_model=true", &models::FrozenParts::language_model);
  return list;
}

}  // namespace

std::vector<Suggestion> suggest_faster(const Plan& plan, const Estimate& estimate) {
  std::vector<Suggestion> suggestions;
  const Choices& chosen = plan.chosen.choices;
  if (chosen.recompute.vision + chosen.recompute.language > 0) {
    const auto missing = estimate.reserved_bytes(chosen.micro_batch_size, {}) - plan.limit.limit_bytes;
    const double without = estimate.micro_batch_seconds(chosen.micro_batch_size, {});
    const double with = estimate.micro_batch_seconds(chosen.micro_batch_size, chosen.recompute);
    suggestions.push_back({fmt::format("with {} more nothing would be recomputed: steps about {:.0f} % shorter",
                                       gigabytes(std::max<int64_t>(missing, 0)), 100 * (1 - without / with)),
                           true});
  }
  const int64_t spare = plan.limit.limit_bytes - plan.chosen.peaks.reserved_bytes;
  if (chosen.micro_batch_size == plan.workload.samples_per_rank()) {
    suggestions.push_back(
        {fmt::format("the whole share of the global batch is one micro-batch; {} stay free beside the margin",
                     gigabytes(spare)),
         true});
  }
  return suggestions;
}

std::vector<Suggestion> suggest_fitting(const PlanRequest& request, const Plan& plan, Tried& tried) {
  std::vector<Suggestion> suggestions;
  const Choices& least = plan.chosen.choices;
  for (const auto& change : changes(request, plan)) {
    const auto outcome = tried.try_job(change.job, least, change.shape);
    const int64_t needed = outcome.peaks().reserved_bytes;
    const bool fits = needed <= plan.limit.limit_bytes;
    suggestions.push_back(
        {fmt::format("{}: needs {}{}", change.text, gigabytes(needed), fits ? "" : ", still too much"), fits});
  }
  const int64_t needed = plan.chosen.peaks.reserved_bytes;
  if (const auto* gpu = smallest_card_for(needed, request.mode, request.workload.world_size)) {
    suggestions.push_back({fmt::format("a larger card: --gpu {} holds it", gpu->name), true});
  }
  std::stable_partition(suggestions.begin(), suggestions.end(),
                        [](const Suggestion& suggestion) { return suggestion.makes_it_fit; });
  return suggestions;
}

}  // namespace vlmtrain::planner

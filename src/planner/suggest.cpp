#include "planner/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "planner/option_search.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.1f} GB", in_gigabytes(bytes));
}

std::string describe(const Choices& choices) {
  const auto& blocks = choices.recompute;
  return fmt::format("micro-batch {}, {} vision and {} language blocks recomputed", choices.micro_batch_size,
                     blocks.vision, blocks.language);
}

/// The sample with one tile an image, the whole picture, or, of native resolution, with a quarter of the pixels. The
/// text as it is.
data::SampleShape with_smaller_images(data::SampleShape shape) {
  if (!shape.grids.empty()) return data::with_share_of_pixels(std::move(shape), 0.25);
  if (shape.tiles <= shape.images) return shape;
  const int64_t features_per_tile = shape.image_tokens / shape.tiles;
  const int64_t removed = (shape.tiles - shape.images) * features_per_tile;
  shape.tiles = shape.images;
  shape.image_tokens -= removed;
  shape.tokens -= removed;
  return shape;
}

/// The smallest card of the table that holds so much beside its context and the mode's margin.
const memory::Gpu* smallest_card_for(int64_t reserved_bytes, const PlanRequest& request) {
  const memory::Gpu* smallest = nullptr;
  for (const auto& gpu : memory::gpus()) {
    if (!computes_in(gpu, request.job.precision)) continue;
    const auto limit =
        limit_of(card_by_name(std::string(gpu.name)), request.mode, std::nullopt, request.workload.world_size);
    if (limit.limit_bytes < reserved_bytes) continue;
    if (smallest == nullptr || gpu.memory_bytes < smallest->memory_bytes) smallest = &gpu;
  }
  return smallest;
}

/// The least memory.limit_gb, in tenths, with which so much fits on the card that a person keeps the run from filling.
std::optional<double> least_limit_for(int64_t reserved_bytes, const PlanRequest& request) {
  if (!request.limit_gigabytes) return std::nullopt;
  constexpr double kStep = 0.1;
  const auto most = static_cast<int64_t>(in_gigabytes(request.card.memory_bytes) / kStep);
  for (auto tenths = static_cast<int64_t>(*request.limit_gigabytes / kStep) + 1; tenths <= most; ++tenths) {
    const double gigabytes = static_cast<double>(tenths) * kStep;
    const auto limit = limit_of(request.card, request.mode, gigabytes, request.workload.world_size);
    if (limit.limit_bytes >= reserved_bytes) return gigabytes;
  }
  return std::nullopt;
}

/// More memory, by the limit that a person has set if that is what is missing.
std::optional<Suggestion> more_memory(int64_t reserved_bytes, const PlanRequest& request) {
  if (const auto limit = least_limit_for(reserved_bytes, request)) {
    return Suggestion{fmt::format("memory.limit_gb={:.1f}", *limit), true};
  }
  const auto* const gpu = smallest_card_for(reserved_bytes, request);
  if (gpu == nullptr) return std::nullopt;
  return Suggestion{fmt::format("a larger card: --gpu {}{} holds it", gpu->name,
                                request.limit_gigabytes ? " without memory.limit_gb" : ""),
                    true};
}

/// A change of the job or of the sample, in the words of the configuration.
struct Change {
  std::string text;
  Job job;
  data::SampleShape shape;
};

using Apply = bool (*)(Change& change);  // false: there is nothing to change

bool take_smaller_images(Change& change) {
  const auto smaller = with_smaller_images(change.shape);
  if (smaller == change.shape) return false;
  change.text = fmt::format("smaller images: {} tiles a sample instead of {} (data.image_max_pixels)", smaller.tiles,
                            change.shape.tiles);
  change.shape = smaller;
  return true;
}

bool train_adapters(Change& change) {
  constexpr int64_t kRank = 16;
  if (change.job.lora) return false;
  change.job.lora = nn::LoraSettings{.rank = kRank};
  change.text = fmt::format("LoRA: lora.rank={}", kRank);
  return true;
}

bool quantize_weights(Change& change) {
  if (!change.job.lora || change.job.quantization != nn::Quantization::kNone) return false;
  change.job.quantization = nn::Quantization::kNf4;
  change.text = "model.quantization=nf4";
  return true;
}

bool freeze_vision_tower(Change& change) {
  auto& frozen = change.job.frozen;
  if (frozen.vision_tower || (frozen.projector && frozen.language_model)) return false;
  frozen.vision_tower = true;
  change.text = "model.freeze_vision_tower=true";
  return true;
}

bool freeze_language_model(Change& change) {
  auto& frozen = change.job.frozen;
  if (frozen.language_model || (frozen.projector && frozen.vision_tower)) return false;
  frozen.language_model = true;
  change.text = "model.freeze_language_model=true";
  return true;
}

/// The least change first.
constexpr Apply kChanges[] = {take_smaller_images, freeze_vision_tower, freeze_language_model, train_adapters,
                              quantize_weights};

std::vector<Change> single_changes(const Job& job, const data::SampleShape& shape) {
  std::vector<Change> list;
  for (const Apply apply : kChanges) {
    Change change{.text = {}, .job = job, .shape = shape};
    if (apply(change)) list.push_back(std::move(change));
  }
  return list;
}

std::vector<Change> double_changes(const Job& job, const data::SampleShape& shape) {
  std::vector<Change> list;
  for (size_t first = 0; first < std::size(kChanges); ++first) {
    for (size_t second = first + 1; second < std::size(kChanges); ++second) {
      Change change{.text = {}, .job = job, .shape = shape};
      if (!kChanges[first](change)) continue;
      const std::string text = change.text;
      if (!kChanges[second](change)) continue;
      change.text = text + " and " + change.text;
      list.push_back(std::move(change));
    }
  }
  return list;
}

/// Of these, the ones that fit.
std::vector<Suggestion> fitting(const std::vector<Change>& changes, const Plan& plan, Tried& tried) {
  std::vector<Suggestion> suggestions;
  for (const auto& change : changes) {
    const auto outcome = tried.try_job(change.job, plan.chosen.choices, change.shape);
    const int64_t bytes = outcome.peaks().reserved_bytes;
    if (outcome.out_of_memory || bytes > plan.limit.limit_bytes) continue;
    suggestions.push_back({fmt::format("{}: needs {}", change.text, gigabytes(bytes + plan.beside_bytes())), true});
  }
  return suggestions;
}

/// What a person fixed, less and less of it.
struct Relaxed {
  std::string text;
  FixedChoices fixed;
};

std::vector<Relaxed> relaxations(const FixedChoices& fixed) {
  std::vector<Relaxed> list;
  Relaxed all{.text = {}, .fixed = fixed};
  const auto relax = [&](const char* key, const auto& free) {
    all.text += (all.text.empty() ? "" : " ") + std::string(key) + "=auto";
    free(all.fixed);
    list.push_back(all);
  };
  if (!fixed.recompute.is_auto()) relax("memory.recompute", [](FixedChoices& choices) { choices.recompute = {}; });
  if (fixed.vision_tiles_per_pass) {
    relax("memory.vision_tiles_per_pass", [](FixedChoices& choices) { choices.vision_tiles_per_pass = {}; });
  }
  if (fixed.loss_chunk_rows) {
    relax("memory.loss_chunk_rows", [](FixedChoices& choices) { choices.loss_chunk_rows = {}; });
  }
  if (fixed.micro_batch_size) {
    relax("training.micro_batch_size", [](FixedChoices& choices) { choices.micro_batch_size = {}; });
  }
  return list;
}

/// The plan that keeps most of what a person fixed.
std::optional<Suggestion> nearest_plan(const PlanRequest& request, const Plan& plan, Tried& tried) {
  for (const auto& relaxed : relaxations(request.fixed)) {
    OptionSearch search(tried, request.workload, relaxed.fixed, plan.limit.limit_bytes);
    if (const auto found = search.find()) {
      return Suggestion{fmt::format("{}: {}, {}", relaxed.text, describe(found->choices),
                                    gigabytes(found->peaks.reserved_bytes + plan.beside_bytes())),
                        true};
    }
  }
  return std::nullopt;
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
  if (const auto nearest = nearest_plan(request, plan, tried)) suggestions.push_back(*nearest);

  const int64_t needed = plan.chosen.peaks.reserved_bytes;
  const auto least_margin =
      limit_of(request.card, Mode::kAggressive, request.limit_gigabytes, request.workload.world_size);
  if (needed <= least_margin.limit_bytes) {
    suggestions.push_back({fmt::format("memory.mode=aggressive, which keeps {:g} % of the card free instead of {:g} %",
                                       least_margin.margin_percent, plan.limit.margin_percent),
                           true});
  }
  auto changed = fitting(single_changes(request.job, plan.worst.shapes.front()), plan, tried);
  if (changed.empty()) changed = fitting(double_changes(request.job, plan.worst.shapes.front()), plan, tried);
  suggestions.insert(suggestions.end(), changed.begin(), changed.end());
  if (const auto more = more_memory(needed, request)) suggestions.push_back(*more);
  if (suggestions.empty()) {
    suggestions.push_back(
        {"neither smaller images nor frozen parts nor a larger card would do; take a smaller model", false});
  }
  return suggestions;
}

}  // namespace vlmtrain::planner

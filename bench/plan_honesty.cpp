// Are plans honest? Plans random jobs for random cards, then runs each plan on a virtual card of exactly that memory:
// ten steps of random samples up to the planned one, in full global batches, must do without running out of memory and
// without an allocation that is tried again; the next larger micro-batch with the same choices must not fit within the
// margin.
//
//   plan_honesty [configurations] [seed] [fixed] [ranks] [masks] [volumes] [optimizer|full|hybrid] > lines.jsonl   a
//   line of JSON for each, a summary on stderr
//
// `fixed`: with PyTorch's fixed segments instead of expandable ones, where plans cannot know how memory fragments.
// `ranks`: for 2 to 16 ranks on one machine or two. Up to three of a plan's ranks do steps of their own, on cards from
// which NCCL has taken what the plan says. `optimizer`, `full`, `hybrid`: these, and they share that.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "app/temporary_folder.h"
#include "planner/option_search.h"
#include "random_jobs.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/models/mask_families.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain {

namespace {

constexpr int kSteps = 10;
/// Steps of large global batches take long and show nothing new.
constexpr int64_t kMostSamplesOfAStep = 32;

struct Setting {
  planner::PlanRequest request;
  nlohmann::ordered_json description;
};

constexpr const char* kModels[] = {"smolvlm-256m", "smolvlm-500m", "smolvlm-2.2b", "llava-1.5-7b"};
constexpr const char* kMaskModels[] = {"prs-med-tiny", "prs-med-7b"};
constexpr const char* kVolumeModels[] = {"brain-llava-tiny", "brain-llava-7b"};

struct Kind {
  bool expandable_segments = true;
  bool several_ranks = false;
  bool masks = false;    ///< models that draw them
  bool volumes = false;  ///< models that see them
  engine::Sharding sharding = engine::Sharding::kNone;
};

void add_ranks(Random& random, planner::Workload& workload) {
  constexpr int64_t kRanks[] = {2, 3, 4, 6, 8, 12, 16};
  workload.world_size = random.one_of(kRanks);
  workload.global_batch_size = workload.world_size * random.between(1, 12);
  if (workload.world_size % 2 == 0 && random.with_chance(0.4)) workload.nodes = 2;
}

Setting random_setting(Random& random, const std::filesystem::path& folder, const Kind& kind) {
  const std::string model = kind.masks     ? random.one_of(kMaskModels)
                            : kind.volumes ? random.one_of(kVolumeModels)
                                           : random.one_of(kModels);
  const auto& gpu = random.one_of(memory::gpus());
  models::HypotheticalSample sample{.images = random.between(0, 4),
                                    .image_width = random.one_of(kSides),
                                    .image_height = random.one_of(kSides),
                                    .text_tokens = random.between(16, 2500)};
  sample.label_tokens = random.between(1, sample.text_tokens - 1);
  if (kind.masks) {
    sample.images = random.between(1, 3);
    sample.masks = std::min(sample.label_tokens, random.between(0, 5));
    constexpr int64_t kSquares[] = {128, 512, 1024};
    sample.mask_image_size = random.one_of(kSquares);
  }
  if (kind.volumes) {
    sample.images.reset();
    sample.volumes = random.between(0, 3);
    const int64_t side = model == kVolumeModels[0] ? 48 : random.one_of(std::to_array<int64_t>({64, 96, 128}));
    sample.volume_size = std::array{side, side, side};
    sample.volume_dtype = random.with_chance(0.5) ? at::kFloat : at::kHalf;
  }
  planner::PlanRequest request;
  request.model = model;
  request.job.model = folder / model;
  const bool has_bf16 = gpu.bf16_operations > 0;
  request.job.precision = has_bf16 && random.with_chance(0.8) ? engine::Precision::kBf16 : engine::Precision::kFp32;
  if (random.with_chance(0.4)) request.job.lora = nn::LoraSettings{.rank = random_rank(random)};
  if (kind.masks) {
    request.job.objective.masks.emplace();
    request.job.frozen.mask_encoder = random.with_chance(0.3);
    if (request.job.lora) {
      request.job.lora->modules_to_save = models::trained_beside_adapters(request.job.model, request.job.frozen);
      if (request.job.frozen.mask_encoder) request.job.lora->left_out.push_back(nn::Component::kMaskEncoder);
    }
  }
  if (random.with_chance(0.3)) request.job.frozen.vision_tower = true;
  if (random.with_chance(0.1)) request.job.frozen.language_model = true;
  request.card = planner::card_by_name(std::string(gpu.name));
  request.mode = random.one_of(planner::modes()).second;
  request.workload.candidates = {{.shapes = {models::shape_of(request.job.model, sample)}, .first_id = {}}};
  request.workload.global_batch_size = random.one_of(kGlobalBatches);
  if (kind.several_ranks) add_ranks(random, request.workload);
  request.job.sharding = kind.sharding;
  request.job.nodes = request.workload.nodes;
  if (random.with_chance(0.2)) request.fixed.recompute.text = random.one_of(std::to_array({"none", "all", "5"}));
  request.fixed.expandable_segments = kind.expandable_segments;
  const auto& shape = request.workload.candidates.front().shapes.front();
  return {request,
          {{"model", model},
           {"gpu", gpu.name},
           {"precision", engine::name_of(request.job.precision)},
           {"lora_rank", request.job.lora ? request.job.lora->rank : 0},
           {"frozen_vision", request.job.frozen.vision_tower},
           {"frozen_language", request.job.frozen.language_model},
           {"mode", planner::name_of(request.mode)},
           {"global_batch_size", request.workload.global_batch_size},
           {"world_size", request.workload.world_size},
           {"nodes", request.workload.nodes},
           {"sharding", engine::name_of(request.job.sharding)},
           {"images", shape.images},
           {"tiles", shape.pixel_rows},
           {"tokens", shape.tokens},
           {"label_tokens", shape.label_tokens},
           {"volumes", shape.volumes},
           {"masks", shape.masks},
           {"mask_side", shape.mask_side},
           {"recompute", request.fixed.recompute.text},
           {"expandable_segments", request.fixed.expandable_segments}}};
}

/// A sample that is nowhere larger than `worst`.
data::SampleShape smaller_sample(Random& random, const data::SampleShape& worst) {
  data::SampleShape shape = worst;
  if (worst.pixel_rows > 0) {
    const auto tiles = static_cast<double>(random.between(1, worst.pixel_rows));
    shape = data::with_share_of_pixels(worst, tiles / static_cast<double>(worst.pixel_rows));
  }
  const int64_t text = random.between(2, worst.tokens - worst.image_tokens);
  shape.label_tokens = random.between(1, std::min(worst.label_tokens, text - 1));
  shape.tokens = shape.image_tokens + text;
  shape.masks = random.between(0, std::min(worst.masks, shape.label_tokens));
  shape.mask_pictures = std::min(worst.mask_pictures, shape.masks);
  if (shape.masks == 0) shape.mask_side = 0;
  return shape;
}

/// Global batches of random samples; in one of the first steps all are the worst.
std::vector<std::vector<planner::SampleGroup>> random_steps(Random& random, const planner::Plan& plan) {
  const data::SampleShape& worst = plan.worst.shapes.front();
  const int64_t micro = plan.chosen.choices.micro_batch_size;
  const int64_t samples =
      std::min(plan.workload.samples_per_rank(), std::max(kMostSamplesOfAStep / micro, int64_t{2}) * micro);
  std::vector<std::vector<planner::SampleGroup>> steps(kSteps);
  const auto worst_step = static_cast<size_t>(random.between(0, kSteps - 1));
  for (size_t step = 0; step < steps.size(); ++step) {
    for (int64_t i = 0; i < samples; ++i) {
      const bool is_worst = step == worst_step || random.with_chance(0.1);
      steps[step].push_back({is_worst ? worst : smaller_sample(random, worst), 1});
    }
  }
  return steps;
}

/// The reserved peak of the chosen plan with the next larger micro-batch; 0 if there is none.
int64_t next_larger_bytes(const planner::Plan& plan, planner::RehearsalProcess& unlimited) {
  const auto sizes = planner::divisors(plan.workload.samples_per_rank());
  const auto next = std::upper_bound(sizes.begin(), sizes.end(), plan.chosen.choices.micro_batch_size);
  if (next == sizes.end()) return 0;
  planner::Choices choices = plan.chosen.choices;
  choices.micro_batch_size = *next;
  const int64_t micro_batches = std::min<int64_t>(2, plan.workload.samples_per_rank() / *next);
  const std::vector<planner::SampleGroup> samples{{plan.worst.shapes.front(), micro_batches * *next}};
  const auto outcome = unlimited.rehearse({.choices = choices, .steps = {samples, samples, samples}});
  return outcome.out_of_memory ? INT64_MAX : outcome.peaks().reserved_bytes;
}

/// The steps of some of the ranks, each from an empty card: the first, the last and one between.
planner::Outcome run_ranks(Random& random, const planner::Plan& plan) {
  constexpr int64_t kMostRanks = 3;
  const int64_t ranks = std::min(kMostRanks, plan.workload.world_size);
  planner::Outcome all;
  for (int64_t i = 0; i < ranks; ++i) {
    planner::Job job = plan.job;
    job.rank = i * (plan.workload.world_size - 1) / std::max<int64_t>(1, ranks - 1);
    planner::RehearsalProcess card(job, {.gpu = std::string(plan.card.gpu->name),
                                         .memory_bytes = plan.limit.card_bytes,
                                         .used_bytes = plan.beside_bytes()});
    const auto run = card.rehearse({.choices = plan.chosen.choices, .steps = random_steps(random, plan)});
    all.out_of_memory = all.out_of_memory || run.out_of_memory;
    all.allocation_retries += run.allocation_retries;
    all.steps.insert(all.steps.end(), run.steps.begin(), run.steps.end());
  }
  return all;
}

struct Summary {
  int64_t planned = 0, fits = 0, out_of_memory = 0, retries = 0, next_fits = 0, next_asked = 0, above_plan = 0;
  double plan_seconds = 0, worst_plan_seconds = 0, rehearsals = 0;
};

nlohmann::ordered_json examine(Random& random, Setting setting, Summary& summary) {
  const planner::Plan plan = planner::make_plan(setting.request);
  ++summary.planned;
  summary.plan_seconds += plan.effort.seconds;
  summary.worst_plan_seconds = std::max(summary.worst_plan_seconds, plan.effort.seconds);
  summary.rehearsals += static_cast<double>(plan.effort.rehearsals);
  nlohmann::ordered_json line = std::move(setting.description);
  line["fits"] = plan.fits;
  line["plan_seconds"] = plan.effort.seconds;
  line["rehearsals"] = plan.effort.rehearsals;
  if (!plan.fits) return line;
  ++summary.fits;

  const std::string gpu(plan.card.gpu->name);
  const auto run = run_ranks(random, plan);
  planner::RehearsalProcess unlimited(plan.job, {.gpu = gpu, .memory_bytes = int64_t{1} << 40});
  const int64_t next = next_larger_bytes(plan, unlimited);

  summary.out_of_memory += run.out_of_memory;
  summary.retries += run.allocation_retries > 0;
  summary.above_plan += run.peaks().reserved_bytes > plan.limit.limit_bytes;
  summary.next_asked += next > 0;
  summary.next_fits += next > 0 && next <= plan.limit.limit_bytes;
  line["micro_batch_size"] = plan.chosen.choices.micro_batch_size;
  line["recompute_vision"] = plan.chosen.choices.recompute.vision;
  line["recompute_language"] = plan.chosen.choices.recompute.language;
  line["vision_tiles_per_pass"] = plan.chosen.choices.vision_tiles_per_pass;
  line["limit_bytes"] = plan.limit.limit_bytes;
  line["planned_reserved_bytes"] = plan.chosen.peaks.reserved_bytes;
  line["run_reserved_bytes"] = run.peaks().reserved_bytes;
  line["run_allocated_bytes"] = run.peaks().allocated_bytes;
  line["out_of_memory"] = run.out_of_memory;
  line["allocation_retries"] = run.allocation_retries;
  line["next_larger_reserved_bytes"] = next;
  return line;
}

int run(int64_t configurations, uint64_t seed, const Kind& kind) {
  const app::TemporaryFolder folder;
  const auto write_configs = [&](const auto& presets) {
    for (const char* model : presets) {
      std::filesystem::create_directory(folder.path() / model);
      models::write_preset_config(model, folder.path() / model);
    }
  };
  write_configs(kModels);
  write_configs(kMaskModels);
  write_configs(kVolumeModels);
  Summary summary;
  for (int64_t i = 0; summary.fits < configurations; ++i) {
    Random random(seed, i);
    Setting setting = random_setting(random, folder.path(), kind);
    const auto& frozen = setting.request.job.frozen;
    if (setting.request.job.lora && frozen.vision_tower && frozen.language_model) continue;  // hardly anything to train
    fmt::print("{}\n", examine(random, std::move(setting), summary).dump());
    std::fflush(stdout);
  }
  fmt::print(
      stderr,
      "{} plans, {} fit; of these {} ran out of memory, {} had to retry an allocation, {} went above the limit; "
      "{} of {} next larger micro-batches fit within the margin. {:.2f} s a plan on average, {:.2f} s at most, {:.1f} "
      "rehearsals a plan\n",
      summary.planned, summary.fits, summary.out_of_memory, summary.retries, summary.above_plan, summary.next_fits,
      summary.next_asked, summary.plan_seconds / static_cast<double>(summary.planned), summary.worst_plan_seconds,
      summary.rehearsals / static_cast<double>(summary.planned));
  return summary.out_of_memory + summary.retries + summary.next_fits == 0 ? 0 : 1;
}

}  // namespace

}  // namespace vlmtrain

int main(int count, char** arguments) {
  using vlmtrain::engine::Sharding;
  if (count > 1 && std::string_view(arguments[1]) == "rehearse") {  // as vlmtrain itself: the rehearsal process
    vlmtrain::planner::serve_rehearsals();
    return 0;
  }
  const int64_t configurations = count > 1 ? std::atoll(arguments[1]) : 200;
  const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  vlmtrain::Kind kind;
  for (int i = 3; i < count; ++i) {
    const std::string_view word(arguments[i]);
    kind.expandable_segments = kind.expandable_segments && word != "fixed";
    for (const auto sharding : {Sharding::kOptimizer, Sharding::kHybrid, Sharding::kFull}) {
      if (word == name_of(sharding)) kind.sharding = sharding;
    }
    const bool shares = kind.sharding != Sharding::kNone;
    kind.several_ranks = kind.several_ranks || shares || word == "ranks";
    kind.masks = kind.masks || word == "masks";
    kind.volumes = kind.volumes || word == "volumes";
  }
  return vlmtrain::run(configurations, seed, kind);
}

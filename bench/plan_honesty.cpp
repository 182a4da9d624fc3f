// Tests whether plans hold. Plans random jobs for random GPUs, then runs each plan on a virtual GPU
// of exactly that memory. Ten steps of random samples up to the planned size, in full global
// batches, must run without an out-of-memory error and without a retried allocation. The next
// larger micro-batch with the same settings must not fit within the margin.
//
//   plan_honesty [configurations] [seed] [fixed] [ranks] [masks] [volumes] [offload]
//       [optimizer|full|hybrid] > lines.jsonl
//
// Writes a JSON line per job, and a summary to stderr. `fixed`: with PyTorch's fixed segments
// instead of expandable ones, whose fragmentation plans cannot predict. `ranks`: 2 to 16 ranks on
// one or two machines; up to three of a plan's ranks run steps of their own, on GPUs with NCCL's
// planned share of memory taken. `offload`: state, weights, gradients and inputs of blocks in host
// memory. `optimizer`, `full`, `hybrid`: as `ranks`, with that sharding.

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "app/process/model_folder.h"
#include "planner/search/config_search.h"
#include "random_jobs.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain {

namespace {

constexpr int kSteps = 10;
/// Steps of larger global batches take long and test nothing else.
constexpr int64_t kMaxSamplesPerStep = 32;

struct JobSetting {
  planner::PlanRequest request;
  nlohmann::ordered_json description;
};

constexpr const char* kModels[] = {"smolvlm-256m", "smolvlm-500m", "smolvlm-2.2b", "llava-1.5-7b"};
constexpr const char* kMaskModels[] = {"prs-med-tiny", "prs-med-7b"};
constexpr const char* kVolumeModels[] = {"brain-llava-tiny", "brain-llava-7b"};

struct BenchmarkOptions {
  bool expandable_segments = true;
  bool several_ranks = false;
  bool masks = false;    ///< models with mask outputs
  bool volumes = false;  ///< models with volume inputs
  bool offload = false;  ///< state, weights or gradients in host memory
  engine::ShardingStrategy sharding = engine::ShardingStrategy::kNone;
};

void add_ranks(Random& random, planner::Workload& workload) {
  constexpr int64_t kRanks[] = {2, 3, 4, 6, 8, 12, 16};
  workload.world_size = random.pick(kRanks);
  workload.global_batch_size = workload.world_size * random.between(1, 12);
  if (workload.world_size % 2 == 0 && random.with_chance(0.4)) workload.num_nodes = 2;
}

/// Moves random parts of the job to host memory, of those that its sharding allows.
void set_random_offload(Random& random, planner::Job& job) {
  std::vector offloads{engine::Offload::kNone, engine::Offload::kOptimizer};
  if (planner::can_offload_weights(job)) offloads.push_back(engine::Offload::kWeights);
  if (planner::can_offload_gradients(job)) offloads.push_back(engine::Offload::kGradients);
  job.offload = random.pick(offloads);
  job.offload_activations = random.with_chance(0.5);
}

JobSetting make_random_job(Random& random, const std::filesystem::path& folder, const BenchmarkOptions& options) {
  const std::string model = options.masks     ? random.pick(kMaskModels)
                            : options.volumes ? random.pick(kVolumeModels)
                                              : random.pick(kModels);
  const auto& gpu = random.pick(memory::list_gpu_specs());
  models::SyntheticSample sample{.images = random.between(0, 4),
                                 .image_width = random.pick(kSides),
                                 .image_height = random.pick(kSides),
                                 .text_tokens = random.between(16, 2500)};
  sample.label_tokens = random.between(1, sample.text_tokens - 1);
  if (options.masks) {
    sample.images = random.between(1, 3);
    sample.masks = std::min(sample.label_tokens, random.between(0, 5));
    constexpr int64_t kSquares[] = {128, 512, 1024};
    sample.mask_image_size = random.pick(kSquares);
  }
  if (options.volumes) {
    sample.images.reset();
    sample.volumes = random.between(0, 3);
    const int64_t side = model == kVolumeModels[0] ? 48 : random.pick(std::to_array<int64_t>({64, 96, 128}));
    sample.volume_size = std::array{side, side, side};
    sample.volume_dtype = random.with_chance(0.5) ? at::kFloat : at::kHalf;
  }
  planner::PlanRequest request;
  request.model = model;
  request.job.model = folder / model;
  const bool has_bf16 = gpu.bf16_flops > 0;
  request.job.precision = has_bf16 && random.with_chance(0.8) ? engine::Precision::kBf16 : engine::Precision::kFp32;
  if (random.with_chance(0.4)) request.job.lora = nn::LoraSettings{.rank = random_rank(random)};
  if (options.masks) {
    request.job.objective.masks.emplace();
    request.job.frozen_parts.mask_encoder = random.with_chance(0.3);
    if (request.job.lora) {
      request.job.lora->modules_to_save =
          models::get_default_modules_to_save(request.job.model, request.job.frozen_parts);
      if (request.job.frozen_parts.mask_encoder)
        request.job.lora->excluded_components.push_back(nn::Component::kMaskEncoder);
    }
  }
  if (random.with_chance(0.3)) request.job.frozen_parts.vision_tower = true;
  if (random.with_chance(0.1)) request.job.frozen_parts.language_model = true;
  request.target = planner::find_target_gpu(std::string(gpu.name));
  request.mode = random.pick(planner::list_memory_modes()).second;
  request.workload.worst_batches = {
      {.shapes = {models::compute_sample_shape(request.job.model, sample)}, .first_sample_id = {}}};
  request.workload.global_batch_size = random.pick(kGlobalBatches);
  if (options.several_ranks) add_ranks(random, request.workload);
  request.job.sharding = options.sharding;
  request.job.num_nodes = request.workload.num_nodes;
  request.job.world_size = request.workload.world_size;
  if (options.offload) set_random_offload(random, request.job);
  if (random.with_chance(0.2)) request.constraints.recompute.text = random.pick(std::to_array({"none", "all", "5"}));
  request.constraints.expandable_segments = options.expandable_segments;
  const auto& shape = request.workload.worst_batches.front().shapes.front();
  return {request,
          {{"model", model},
           {"gpu", gpu.name},
           {"precision", engine::to_string(request.job.precision)},
           {"lora_rank", request.job.lora ? request.job.lora->rank : 0},
           {"frozen_vision", request.job.frozen_parts.vision_tower},
           {"frozen_language", request.job.frozen_parts.language_model},
           {"mode", planner::to_string(request.mode)},
           {"global_batch_size", request.workload.global_batch_size},
           {"world_size", request.workload.world_size},
           {"nodes", request.workload.num_nodes},
           {"sharding", engine::to_string(request.job.sharding)},
           {"offload", engine::to_string(request.job.offload)},
           {"offload_activations", request.job.offload_activations},
           {"images", shape.num_media()},
           {"tiles", shape.pixel_rows},
           {"tokens", shape.tokens},
           {"label_tokens", shape.label_tokens},
           {"volumes", shape.num_volumes},
           {"masks", shape.masks},
           {"mask_side", shape.mask_image_size},
           {"recompute", request.constraints.recompute.text},
           {"expandable_segments", request.constraints.expandable_segments}}};
}

/// Returns a sample that is not larger than `worst` in any dimension.
data::SampleShape sample_smaller_shape(Random& random, const data::SampleShape& worst) {
  data::SampleShape shape = worst;
  if (worst.pixel_rows > 0) {
    const auto tiles = static_cast<double>(random.between(1, worst.pixel_rows));
    shape = data::scale_pixels(worst, tiles / static_cast<double>(worst.pixel_rows));
  }
  const int64_t text = random.between(2, worst.tokens - worst.image_tokens);
  shape.label_tokens = random.between(1, std::min(worst.label_tokens, text - 1));
  shape.tokens = shape.image_tokens + text;
  shape.masks = random.between(0, std::min(worst.masks, shape.label_tokens));
  shape.num_images_with_masks = std::min(worst.num_images_with_masks, shape.masks);
  if (shape.masks == 0) shape.mask_image_size = 0;
  return shape;
}

/// Returns global batches of random samples; one of the first steps has only the largest samples.
std::vector<std::vector<planner::SampleGroup>> make_random_steps(Random& random, const planner::Plan& plan) {
  const data::SampleShape& worst = plan.worst_batch.shapes.front();
  const int64_t micro_batch_size = plan.best_estimate.step_config.micro_batch_size;
  const int64_t samples = std::min(plan.workload.samples_per_rank(),
                                   std::max(kMaxSamplesPerStep / micro_batch_size, int64_t{2}) * micro_batch_size);
  std::vector<std::vector<planner::SampleGroup>> steps(kSteps);
  const auto worst_step = static_cast<size_t>(random.between(0, kSteps - 1));
  for (size_t step = 0; step < steps.size(); ++step) {
    for (int64_t i = 0; i < samples; ++i) {
      const bool is_worst = step == worst_step || random.with_chance(0.1);
      steps[step].push_back({is_worst ? worst : sample_smaller_shape(random, worst), 1});
    }
  }
  return steps;
}

/// Returns the reserved peak of the plan with the next larger micro-batch; 0 if none exists.
int64_t measure_next_larger_bytes(const planner::Plan& plan, planner::DryRunProcess& unlimited) {
  const auto sizes = planner::find_divisors(plan.workload.samples_per_rank());
  const auto next_size = std::upper_bound(sizes.begin(), sizes.end(), plan.best_estimate.step_config.micro_batch_size);
  if (next_size == sizes.end()) return 0;
  planner::StepConfig step_config = plan.best_estimate.step_config;
  step_config.micro_batch_size = *next_size;
  const int64_t micro_batches = std::min<int64_t>(2, plan.workload.samples_per_rank() / *next_size);
  const std::vector<planner::SampleGroup> samples{{plan.worst_batch.shapes.front(), micro_batches * *next_size}};
  const auto outcome = unlimited.dry_run({.step_config = step_config, .steps = {samples, samples, samples}});
  return outcome.ran_out_of_memory ? INT64_MAX : outcome.compute_max_peaks().reserved_bytes;
}

/// Runs the steps of the first, the last and one other rank, each on an empty GPU.
planner::DryRunResult run_ranks(Random& random, const planner::Plan& plan) {
  constexpr int64_t kMaxRanks = 3;
  const int64_t ranks = std::min(kMaxRanks, plan.workload.world_size);
  planner::DryRunResult outcome;
  for (int64_t i = 0; i < ranks; ++i) {
    planner::Job job = plan.job;
    job.rank = i * (plan.workload.world_size - 1) / std::max<int64_t>(1, ranks - 1);
    planner::DryRunProcess process(job, {.gpu = std::string(plan.gpu().gpu->name),
                                         .memory_bytes = plan.limit.allowed_bytes,
                                         .initial_used_bytes = plan.limit.overhead_bytes()});
    const auto rank_outcome =
        process.dry_run({.step_config = plan.best_estimate.step_config, .steps = make_random_steps(random, plan)});
    outcome.ran_out_of_memory = outcome.ran_out_of_memory || rank_outcome.ran_out_of_memory;
    outcome.num_allocation_retries += rank_outcome.num_allocation_retries;
    outcome.steps.insert(outcome.steps.end(), rank_outcome.steps.begin(), rank_outcome.steps.end());
  }
  return outcome;
}

struct Summary {
  int64_t planned = 0, fits = 0, out_of_memory = 0, retries = 0, next_fits = 0, next_measured = 0, above_plan = 0,
          host_above_plan = 0;
  double plan_seconds = 0, worst_plan_seconds = 0, num_dry_runs = 0;
};

nlohmann::ordered_json check_plan(Random& random, JobSetting setting, Summary& summary) {
  const planner::Plan plan = planner::make_plan(setting.request);
  ++summary.planned;
  summary.plan_seconds += plan.planning_stats.seconds;
  summary.worst_plan_seconds = std::max(summary.worst_plan_seconds, plan.planning_stats.seconds);
  summary.num_dry_runs += static_cast<double>(plan.planning_stats.num_dry_runs);
  nlohmann::ordered_json report = std::move(setting.description);
  report["fits"] = plan.fits;
  report["plan_seconds"] = plan.planning_stats.seconds;
  report["dry_runs"] = plan.planning_stats.num_dry_runs;
  if (!plan.fits) return report;
  ++summary.fits;

  const std::string gpu(plan.gpu().gpu->name);
  const auto outcome = run_ranks(random, plan);
  planner::DryRunProcess unlimited(plan.job, {.gpu = gpu, .memory_bytes = int64_t{1} << 40});
  const int64_t next_bytes = measure_next_larger_bytes(plan, unlimited);

  summary.out_of_memory += outcome.ran_out_of_memory;
  summary.retries += outcome.num_allocation_retries > 0;
  summary.above_plan += outcome.compute_max_peaks().reserved_bytes > plan.limit.limit_bytes;
  summary.host_above_plan += outcome.compute_max_peaks().host_activation_bytes > plan.peaks().host_activation_bytes;
  summary.next_measured += next_bytes > 0;
  summary.next_fits += next_bytes > 0 && next_bytes <= plan.limit.limit_bytes;
  report["micro_batch_size"] = plan.best_estimate.step_config.micro_batch_size;
  report["recompute_vision"] = plan.best_estimate.step_config.recompute.vision;
  report["recompute_language"] = plan.best_estimate.step_config.recompute.language;
  report["vision_tiles_per_pass"] = plan.best_estimate.step_config.vision_tiles_per_pass;
  report["limit_bytes"] = plan.limit.limit_bytes;
  report["planned_reserved_bytes"] = plan.best_estimate.peaks.reserved_bytes;
  report["run_reserved_bytes"] = outcome.compute_max_peaks().reserved_bytes;
  report["run_allocated_bytes"] = outcome.compute_max_peaks().allocated_bytes;
  report["planned_host_bytes"] = plan.host_bytes();
  report["planned_host_activation_bytes"] = plan.peaks().host_activation_bytes;
  report["run_host_activation_bytes"] = outcome.compute_max_peaks().host_activation_bytes;
  report["out_of_memory"] = outcome.ran_out_of_memory;
  report["allocation_retries"] = outcome.num_allocation_retries;
  report["next_larger_reserved_bytes"] = next_bytes;
  return report;
}

int run(int64_t configurations, uint64_t seed, const BenchmarkOptions& options) {
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
    JobSetting setting = make_random_job(random, folder.path(), options);
    const auto& frozen = setting.request.job.frozen_parts;
    if (setting.request.job.lora && frozen.vision_tower && frozen.language_model)
      continue;  // nearly nothing is trainable
    fmt::print("{}\n", check_plan(random, std::move(setting), summary).dump());
    std::fflush(stdout);
  }
  fmt::print(
      stderr,
      "{} plans, {} fit; of these {} ran out of memory, {} had to retry an allocation, {} went above the limit, {} "
      "used more host memory than planned; "
      "{} of {} next larger micro-batches fit within the margin. {:.2f} s a plan on average, {:.2f} s at most, {:.1f} "
      "dry runs a plan\n",
      summary.planned, summary.fits, summary.out_of_memory, summary.retries, summary.above_plan,
      summary.host_above_plan, summary.next_fits, summary.next_measured,
      summary.plan_seconds / static_cast<double>(summary.planned), summary.worst_plan_seconds,
      summary.num_dry_runs / static_cast<double>(summary.planned));
  return summary.out_of_memory + summary.retries + summary.host_above_plan + summary.next_fits == 0 ? 0 : 1;
}

}  // namespace

}  // namespace vlmtrain

int main(int argc, char** argv) {
  using vlmtrain::engine::ShardingStrategy;
  if (argc > 1 && std::string_view(argv[1]) == "dry-run") {  // the dry-run process, as in vlmtrain
    vlmtrain::planner::serve_dry_runs();
    return 0;
  }
  const int64_t configurations = argc > 1 ? std::atoll(argv[1]) : 200;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  vlmtrain::BenchmarkOptions options;
  for (int i = 3; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    options.expandable_segments = options.expandable_segments && argument != "fixed";
    for (const auto sharding : {ShardingStrategy::kOptimizer, ShardingStrategy::kHybrid, ShardingStrategy::kFull}) {
      if (argument == to_string(sharding)) options.sharding = sharding;
    }
    const bool is_sharded = options.sharding != ShardingStrategy::kNone;
    options.several_ranks = options.several_ranks || is_sharded || argument == "ranks";
    options.masks = options.masks || argument == "masks";
    options.volumes = options.volumes || argument == "volumes";
    options.offload = options.offload || argument == "offload";
  }
  return vlmtrain::run(configurations, seed, options);
}

#include "vlmtrain/train/config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "train/settings/options.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::train {

namespace {

/// Not tuned per model. Larger micro-batches take more memory but do not use the cores of a CPU
/// better.
constexpr int64_t kMaxAutoMicroBatchSize = 8;

}  // namespace

const std::vector<std::pair<std::string, BestMetric>>& get_best_metric_names() {
  static const auto names = [] {
    std::vector<std::pair<std::string, BestMetric>> metrics{
        {"loss", BestMetric::kLoss}, {"exact_match", BestMetric::kExactMatch}, {"dice", BestMetric::kDice}};
    for (const auto& [name, metric] : evaluation::get_metric_names()) metrics.emplace_back(name, metric);
    return metrics;
  }();
  return names;
}

const char* to_string(BestMetric metric) {
  return std::ranges::find(get_best_metric_names(), metric, &std::pair<std::string, BestMetric>::second)->first.c_str();
}

report::BestMetric make_report_metric(BestMetric metric) {
  const bool is_error_rate =
      metric.kind() == BestMetric::kAnswerMetric && evaluation::is_lower_better(metric.answer_metric());
  return {.name = to_string(metric), .is_lower_better = metric == BestMetric::kLoss || is_error_rate};
}

int64_t compute_total_steps(const engine::TrainingOptions& training, double batch_units_per_epoch) {
  if (training.max_steps) return *training.max_steps;
  const double steps = training.epochs * batch_units_per_epoch / static_cast<double>(training.global_batch_size);
  if (steps > static_cast<double>(engine::kMaxSteps)) {
    throw usage_error("{}: {} epochs of {:.0f} samples are {:.3g} steps of {}, more than {}; lower it",
                      keys::training::kEpochs, training.epochs, batch_units_per_epoch, steps,
                      training.global_batch_size, engine::kMaxSteps);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double batch_units_per_epoch) {
  const int64_t total_steps_from_start = compute_total_steps(training, batch_units_per_epoch);
  if (training.max_steps) return total_steps_from_start;
  constexpr double kEpochRoundingError = 1e-9;  // rounding error of `epochs`, which must not add a step
  const double remaining_batch_units = (training.epochs - epochs) * batch_units_per_epoch;
  return steps + std::max<int64_t>(
                     0, std::llround(std::ceil(remaining_batch_units / static_cast<double>(training.global_batch_size) -
                                               kEpochRoundingError)));
}

int64_t compute_max_micro_batch_size(const Config& config, int64_t world_size) {
  const engine::TrainingOptions& training = config.training;
  if (training.micro_batch_size) return *training.micro_batch_size;
  if (config.data.packing) return kMaxAutoMicroBatchSize;
  const int64_t samples_per_rank = training.global_batch_size / world_size;
  int64_t size = std::min(kMaxAutoMicroBatchSize, samples_per_rank);
  while (samples_per_rank % size != 0) --size;
  return size;
}

void check_micro_batch_size(const Config& config) {
  const auto& size = config.training.micro_batch_size;
  const int64_t global_batch_size = config.training.global_batch_size;
  if (!size || config.data.packing || (*size <= global_batch_size && global_batch_size % *size == 0)) return;
  throw usage_error("{}: {} does not divide {} {}; the global batch size is exact, so choose a divisor, or auto",
                    keys::training::kMicroBatchSize, *size, keys::training::kGlobalBatchSize, global_batch_size);
}

namespace {

/// Throws UserError (kUsage) if the run cannot have the parts of memory.offload in host memory.
void check_offload(const Config& config, int64_t world_size) {
  planner::Job job;
  job.world_size = world_size;
  job.sharding = config.distributed.sharding.value_or(engine::ShardingStrategy::kNone);
  job.offload = config.memory.offload.value_or(engine::Offload::kNone);
  if (config.lora.rank > 0 || !config.model.adapter.empty())
    job.lora = nn::LoraSettings{.use_dora = config.lora.use_dora};
  job.optimizer = config.training.optimizer;
  job.objective.tasks.resolve_gradient_conflicts =
      config.training.batch_and_tasks.gradient_conflicts == engine::GradientConflictMethod::kPcGrad;
  planner::check_offload(job, /*auto_sharding=*/!config.distributed.sharding);
}

}  // namespace

void check_sharding(const Config& config, int64_t world_size) {
  const auto sharding = config.distributed.sharding.value_or(engine::ShardingStrategy::kNone);
  check_offload(config, world_size);
  if (sharding == engine::ShardingStrategy::kNone) return;
  if (world_size == 1) {
    spdlog::info("{}: has no effect with one rank", keys::distributed::kSharding);
    return;
  }
  if (config.training.batch_and_tasks.gradient_conflicts == engine::GradientConflictMethod::kPcGrad) {
    throw usage_error("{}={} and {}=pcgrad: PCGrad needs whole gradients, but each rank has only a shard; set {}=none",
                      keys::distributed::kSharding, engine::to_string(sharding), keys::training::kGradientConflicts,
                      keys::distributed::kSharding);
  }
  if (engine::shards_blocks(sharding) && config.training.optimizer.needs_whole_parameters()) {
    throw usage_error(
        "{}={}: the optimizer ({} or {}) needs whole matrices, but each rank has only a shard of every weight; set "
        "{}=optimizer",
        keys::distributed::kSharding, engine::to_string(sharding), keys::training::kOptimizer,
        keys::training::kParameterGroups, keys::distributed::kSharding);
  }
  if (engine::shards_blocks(sharding) && config.lora.use_dora) {
    throw usage_error(
        "{}={} and {}=true: DoRA needs the norms of all rows of the adapted weights, but each rank has only a shard; "
        "set {}=optimizer, or {}=false",
        keys::distributed::kSharding, engine::to_string(sharding), keys::lora::kUseDora, keys::distributed::kSharding,
        keys::lora::kUseDora);
  }
}

void check_world_size(const Config& config, int64_t world_size) {
  const int64_t global_batch_size = config.training.global_batch_size;
  check_sharding(config, world_size);
  if (world_size == 1) return;
  if (global_batch_size % world_size != 0) {
    const int64_t lower = global_batch_size / world_size * world_size;
    throw usage_error(
        "{}: {} cannot be divided among {} ranks; the global batch size is exact, so choose {}{}, or another number of "
        "ranks",
        keys::training::kGlobalBatchSize, global_batch_size, world_size, lower > 0 ? fmt::format("{} or ", lower) : "",
        lower + world_size);
  }
  const auto& micro_batch_size = config.training.micro_batch_size;
  if (micro_batch_size && !config.data.packing && global_batch_size / world_size % *micro_batch_size != 0) {
    throw planner::make_micro_batch_size_error(*micro_batch_size, global_batch_size / world_size, global_batch_size);
  }
  check_global_batch_tokens(config, world_size);
}

void check_global_batch_tokens(const Config& config, int64_t world_size) {
  if (world_size > 1 && config.training.batch_and_tasks.global_batch_tokens) {
    throw usage_error("{}: is {}, but is not supported with several ranks; train with one rank, or set {} alone",
                      keys::training::kGlobalBatchTokens, *config.training.batch_and_tasks.global_batch_tokens,
                      keys::training::kGlobalBatchSize);
  }
}

namespace {

/// Keys of other trainers that stand for nothing that can be set here.
void declare_foreign_keys(OptionTable& table) {
  table.add_foreign_keys({"min_pixels", "image_min_pixels"}, "no equivalent: the model's processor sets it");
  table.add_foreign_keys({"group_by_length", "group_by_modality_length", "padding_free", "remove_unused_columns",
                          "padding_side", "pad_to_sequence_len", "pad_to_multiple_of"},
                         "nothing to set: samples are always concatenated without padding");
  table.add_foreign_keys({"image_aspect_ratio", "mm_vision_select_layer", "mm_vision_select_feature",
                          "mm_use_im_start_end", "mm_use_im_patch_token", "mm_projector_type", "vision_tower",
                          "force_image_size", "down_sample_ratio", "dynamic_image_size"},
                         "no equivalent: the checkpoint's config.json sets it");
  table.add_foreign_keys({"save_safetensors", "save_only_model"},
                         "nothing to set: checkpoints are safetensors plus the trainer state");
  table.add_foreign_keys({"logging_steps", "log_interval", "logging_strategy", "logging_first_step"},
                         "nothing to set: metrics.jsonl has a line for every step");
  table.add_foreign_keys(
      {"flash_attn", "attn_implementation", "attn_impl", "use_flash_attention", "use_flash_attention_2",
       "enable_liger_kernel", "use_liger_kernel", "torch_compile", "use_unsloth", "disable_flash_attn2", "use_triton"},
      fmt::format(
          "nothing to set: the device and the precision determine the kernels; {}=aten disables the custom ones",
          keys::training::kKernels));
  table.add_foreign_keys({"trust_remote_code", "processor_type", "skip_prepare_dataset", "dataset_prepared_path",
                          "lazy_preprocess", "bias", "loftq_config", "recipe", "_target_", "stage", "do_train",
                          "use_fast_tokenizer", "hub_model_id", "push_to_hub", "use_cache"},
                         "no equivalent: remove it");
}

}  // namespace

OptionTable declare_options(Config& config) {
  OptionTable table;
  declare_options(table, config.model);
  declare_options(table, config.hub);
  declare_options(table, config.lora);
  data::declare_options(table, config.data);
  engine::declare_options(table, config.training);
  table.add_enum(
      keys::training::kResume, config.resume_policy,
      {{"auto", ResumePolicy::kAuto}, {"changed", ResumePolicy::kChanged}, {"never", ResumePolicy::kNever}},
      {.doc = "Handling of checkpoints in output.dir. `auto`: resume from the newest one, if any; refuse if the "
              "settings would make it a different run. `changed`: resume with the changed settings, as far as they "
              "may change (docs/how-to/resume.md). `never`: refuse to start if a checkpoint exists.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"resume_from_checkpoint", "resume", "overwrite_output_dir", "auto_resume"},
                  .text = "training.resume: auto resumes from the newest checkpoint in output.dir, changed does so "
                          "with other settings, never fails if one exists"}}});
  table.add_enum(
      keys::training::kScheduleFrom, config.schedule_origin,
      {{"start", ScheduleOrigin::kStart}, {"change", ScheduleOrigin::kLastChange}},
      {.doc = "Start of warm-up and learning rate schedule. `start`: the run's first step; they span all its steps. "
              "`change`: the step at which `training.resume: changed` last changed learning rates, schedule, steps "
              "or data; they span the steps that remained then (docs/how-to/resume.md).",
       .resume = ResumeRule::kIfRequested});
  declare_options(table, config.evaluation);
  planner::declare_options(table, config.memory);
  declare_options(table, config.output);
  declare_options(table, config.distributed);
  declare_foreign_keys(table);
  return table;
}

}  // namespace vlmtrain::train

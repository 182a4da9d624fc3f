#include "vlmtrain/train/planning.h"

#include "train/data_check.h"
#include "train/data_remarks.h"
#include "train/task_balance.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/data/drawn_steps.h"
#include "vlmtrain/models/mask_families.h"
#include "vlmtrain/planner/drawn_steps.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/own_kernels.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

double compute_samples_per_pack(const data::SampleOrder& order) {
  double samples = 0;
  double packs = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.epoch(source, 0);
    samples += static_cast<double>(epoch->samples.size());
    packs += static_cast<double>(epoch->units());
  }
  return samples / packs;
}

}  // namespace

std::optional<engine::MaskLossWeights> get_mask_loss_weights(const Config& config) {
  if (!models::predicts_masks(config.model.path)) return std::nullopt;
  return config.training.mask_losses;
}

planner::Job make_job(const Config& config, const engine::TaskSettings& tasks) {
  return {.model = config.model.path,
          .precision = config.training.precision,
          .frozen = make_frozen_parts(config.model),
          .lora = make_lora_settings(config),
          .quantization = resolve_quantization(config),
          .disabled_kernels = find_disabled_kernels(config.training),
          .optimizer = make_adamw_settings(config.training),
          .objective = {.tasks = tasks, .masks = get_mask_loss_weights(config)},
          .sharding = config.distributed.sharding.value_or(engine::Sharding::kNone)};
}

planner::PlanRequest build_plan_request(const Config& config, planner::Job job, planner::TargetGpu target,
                                        planner::Workload workload) {
  return {.model = config.model.path,
          .job = std::move(job),
          .chooses_sharding = !config.distributed.sharding &&
                              config.training.balance.gradient_conflicts != engine::GradientConflicts::kPcGrad,
          .target = std::move(target),
          .mode = config.memory.mode,
          .limit_gigabytes = config.memory.limit_gb,
          .workload = std::move(workload),
          .constraints = {.micro_batch_size = config.training.micro_batch_size,
                          .recompute = config.memory.recompute,
                          .vision_tiles_per_pass = config.memory.vision_tiles_per_pass,
                          .loss_chunk_rows = config.memory.loss_chunk_rows,
                          .expandable_segments = config.memory.expandable_segments}};
}

data::SampleOrder make_draw_order(const data::DataSet& dataset, const Config& config, data::SampleIndex& sample_index) {
  auto settings = data::make_order_settings(config.data, static_cast<uint64_t>(config.training.seed));
  settings.block_starts = dataset.block_starts();
  if (settings.packs) data::reject_oversized_samples(*settings.packs, sample_index);
  return data::make_sample_order(dataset, config.data.task_shares, sample_index, std::move(settings));
}

planner::Workload make_workload(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                const Config& config, int64_t world_size) {
  if (sample_index.shapes.num_known() == 0) {
    throw data_error("{}: none of its {} samples can be used; the first: {}", config.data.train.name(),
                     sample_index.shapes.size(), sample_index.problems.begin()->second.message);
  }
  planner::Workload workload{
      .candidates = {}, .global_batch_size = config.training.global_batch_size, .world_size = world_size};
  if (order.settings().packs) {
    workload.packed = planner::PackedSamples{.samples_per_pack = compute_samples_per_pack(order),
                                             .fixed_micro_batch_size = config.training.micro_batch_size.value_or(0)};
  }
  const int64_t samples = workload.samples_per_rank();
  workload.sampled_steps = data::simulate_steps(order, sample_index.shapes, workload.global_batch_size,
                                                planner::num_steps_to_sample(samples), workload.world_size);
  workload.candidates = planner::find_worst_batches(sample_index, samples);
  return workload;
}

PlanningInputs prepare_planning_inputs(const data::DataSet& records, const models::Processor& processor,
                                       const Config& config, int64_t world_size) {
  data::SampleIndex sample_index = check_data(records, processor, config, config.data.train.name(), /*cache=*/{});
  log_training_data_remarks(config, records, sample_index);
  const data::SampleOrder order = make_draw_order(records, config, sample_index);
  if (!sample_index.problems.empty()) {
    const bool stops = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
    spdlog::warn("{}: {} of {} samples cannot be used and are not planned for{}; the first: {}",
                 config.data.train.name(), sample_index.problems.size(), records.size(),
                 stops ? ", and training stops at them (data.on_bad_sample=fail)" : "",
                 sample_index.problems.begin()->second.message);
  }
  return {.workload = make_workload(sample_index, order, config, world_size),
          .tasks = make_task_settings(config.training.balance, data::Tasks(sample_index, records))};
}

planner::StepConfig make_min_memory_config(const Config& config, int64_t vision_blocks, int64_t language_blocks) {
  constexpr int64_t kSmallLossChunk = 128;
  const models::RecomputeBlocks all{.vision = vision_blocks, .language = language_blocks};
  const planner::RecomputeOption& recompute = config.memory.recompute;
  return {.micro_batch_size = config.training.micro_batch_size.value_or(1),
          .recompute = recompute.is_auto() ? all : recompute.resolve_blocks(all),
          .vision_tiles_per_pass = config.memory.vision_tiles_per_pass.value_or(1),
          .loss_chunk_rows = config.memory.loss_chunk_rows.value_or(kSmallLossChunk),
          .expandable_segments = config.memory.expandable_segments,
          .copies_ahead = false};
}

}  // namespace vlmtrain::train

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

double samples_per_pack(const data::DrawOrder& order) {
  double samples = 0;
  double packs = 0;
  for (int64_t lane = 0; lane < order.lanes(); ++lane) {
    const auto epoch = order.epoch(lane, 0);
    samples += static_cast<double>(epoch->samples.size());
    packs += static_cast<double>(epoch->units());
  }
  return samples / packs;
}

}  // namespace

std::optional<engine::MaskLossWeights> mask_losses(const Config& config) {
  if (!models::draws_masks(config.model.path)) return std::nullopt;
  return config.training.mask_losses;
}

planner::Job job_of(const Config& config, const engine::TaskSettings& tasks) {
  return {.model = config.model.path,
          .precision = config.training.precision,
          .frozen = frozen_parts(config.model),
          .lora = lora_settings(config),
          .quantization = quantization(config),
          .left_out_kernels = left_out_kernels(config.training),
          .optimizer = adamw_settings(config.training),
          .objective = {.tasks = tasks, .masks = mask_losses(config)},
          .sharding = config.distributed.sharding.value_or(engine::Sharding::kNone)};
}

planner::PlanRequest plan_request(const Config& config, planner::Job job, planner::TargetCard card,
                                  planner::Workload workload) {
  return {.model = config.model.path,
          .job = std::move(job),
          .chooses_sharding = !config.distributed.sharding &&
                              config.training.balance.gradient_conflicts != engine::GradientConflicts::kPcGrad,
          .card = std::move(card),
          .mode = config.memory.mode,
          .limit_gigabytes = config.memory.limit_gb,
          .workload = std::move(workload),
          .fixed = {.micro_batch_size = config.training.micro_batch_size,
                    .recompute = config.memory.recompute,
                    .vision_tiles_per_pass = config.memory.vision_tiles_per_pass,
                    .loss_chunk_rows = config.memory.loss_chunk_rows,
                    .expandable_segments = config.memory.expandable_segments}};
}

data::DrawOrder order_of(const data::DataSet& data_set, const Config& config, data::Outlines& outlines) {
  auto settings = data::order_settings(config.data, static_cast<uint64_t>(config.training.seed));
  settings.blocks = data_set.blocks();
  if (settings.packs) data::refuse_larger_than_packs(*settings.packs, outlines);
  return data::draw_order(data_set, config.data.task_shares, outlines, std::move(settings));
}

planner::Workload workload_of(const data::Outlines& outlines, const data::DrawOrder& order, const Config& config,
                              int64_t world_size) {
  if (outlines.shapes.known() == 0) {
    throw data_error("{}: none of its {} samples can be used; the first: {}", config.data.train.name(),
                     outlines.shapes.size(), outlines.problems.begin()->second.message);
  }
  planner::Workload workload{
      .candidates = {}, .global_batch_size = config.training.global_batch_size, .world_size = world_size};
  if (order.settings().packs) {
    workload.packed = planner::PackedSamples{.per_pack = samples_per_pack(order),
                                             .micro_batch = config.training.micro_batch_size.value_or(0)};
  }
  const int64_t samples = workload.samples_per_rank();
  workload.drawn = data::drawn_parts(order, outlines.shapes, workload.global_batch_size,
                                     planner::steps_to_draw(samples), workload.world_size);
  workload.candidates = planner::worst_batches(outlines, samples);
  return workload;
}

PlannedData look_at_data_to_plan(const data::DataSet& records, const models::Processor& processor, const Config& config,
                                 int64_t world_size) {
  data::Outlines outlines = look_at_data(records, processor, config, config.data.train.name(), /*cache=*/{});
  log_remarks_on_training(config, records, outlines);
  const data::DrawOrder order = order_of(records, config, outlines);
  if (!outlines.problems.empty()) {
    const bool stops = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
    spdlog::warn("{}: {} of {} samples cannot be used and are not planned for{}; the first: {}",
                 config.data.train.name(), outlines.problems.size(), records.size(),
                 stops ? ", and training stops at them (data.on_bad_sample=fail)" : "",
                 outlines.problems.begin()->second.message);
  }
  return {.workload = workload_of(outlines, order, config, world_size),
          .tasks = task_settings(config.training.balance, data::Tasks(outlines, records))};
}

planner::Choices cautious_choices(const Config& config, int64_t vision_blocks, int64_t language_blocks) {
  constexpr int64_t kSmallLossChunk = 128;
  const models::RecomputeBlocks all{.vision = vision_blocks, .language = language_blocks};
  const planner::RecomputeOption& recompute = config.memory.recompute;
  return {.micro_batch_size = config.training.micro_batch_size.value_or(1),
          .recompute = recompute.is_auto() ? all : recompute.blocks_of(all),
          .vision_tiles_per_pass = config.memory.vision_tiles_per_pass.value_or(1),
          .loss_chunk_rows = config.memory.loss_chunk_rows.value_or(kSmallLossChunk),
          .expandable_segments = config.memory.expandable_segments,
          .copies_ahead = false};
}

}  // namespace vlmtrain::train

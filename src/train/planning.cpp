#include "vlmtrain/train/planning.h"

#include "train/task_balance.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/data/sample_stream.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

/// Samples measured ahead of the one that is looked at, for each thread.
constexpr int64_t kAheadPerWorker = 16;

/// Why a sample is bad; an error of any other kind goes on.
std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& bad) {
    if (bad.code() != ExitCode::kBadData) throw;
    return bad.what();
  }
}

}  // namespace

planner::PlanRequest plan_request(const Config& config, planner::TargetCard card, planner::Workload workload,
                                  const engine::TaskSettings& tasks) {
  return {.model = config.model.path,
          .job = {.model = config.model.path,
                  .precision = config.training.precision,
                  .optimizer_states = config.training.optimizer_states,
                  .frozen = frozen_parts(config.model),
                  .lora = lora_settings(config),
                  .quantization = quantization(config),
                  .max_grad_norm = config.training.max_grad_norm,
                  .tasks = tasks},
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

engine::TaskSettings task_settings(const Config& config, const std::vector<io::Record>& records) {
  return task_settings(config.training.balance, data::Tasks(records));
}

planner::Workload workload_of(const std::vector<io::Record>& records, const models::Processor& processor,
                              const Config& config) {
  std::vector<planner::MeasuredSample> measured;
  data::SampleStream stream(data::file_order(std::ssize(records)),
                            [&](int64_t index) { return data::make_outline(processor, records, index); },
                            {.workers = config.data.num_workers, .ahead = kAheadPerWorker * config.data.num_workers});
  int64_t bad = 0;
  std::string first_reason;
  while (const auto item = stream.next()) {
    if (item->error) {
      if (++bad == 1) first_reason = reason_of(item->error);
    } else {
      measured.push_back({item->sample.id, data::shape_of(item->sample)});
    }
  }
  if (measured.empty()) {
    throw data_error("{}: none of its {} samples can be used; the first: {}", config.data.train, records.size(),
                     first_reason);
  }
  if (bad > 0) {
    spdlog::warn("{}: {} of {} samples cannot be used and are not planned for; the first: {}", config.data.train, bad,
                 records.size(), first_reason);
  }
  return {.candidates = planner::worst_batches(std::move(measured), config.training.global_batch_size),
          .global_batch_size = config.training.global_batch_size};
}

planner::Choices choices_without_plan(const Config& config, int64_t vision_blocks, int64_t language_blocks) {
  planner::Choices choices{.micro_batch_size = micro_batch_size(config.training),
                           .recompute = {},
                           .vision_tiles_per_pass = config.memory.vision_tiles_per_pass.value_or(0),
                           .expandable_segments = config.memory.expandable_segments};
  choices.loss_chunk_rows = config.memory.loss_chunk_rows.value_or(choices.loss_chunk_rows);
  const planner::RecomputeOption& recompute = config.memory.recompute;
  if (!recompute.is_auto()) {
    choices.recompute = recompute.blocks_of({vision_blocks, language_blocks});
  }
  return choices;
}

}  // namespace vlmtrain::train

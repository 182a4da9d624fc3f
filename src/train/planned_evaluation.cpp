#include "vlmtrain/train/planned_evaluation.h"

#include "train/evaluation_planning.h"
#include "train/evaluation_set.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/row_group_memory.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/end_tokens.h"
#include "vlmtrain/planner/host_plan.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/train/own_kernels.h"

namespace vlmtrain::train {

namespace {

planner::Job evaluated_job(const Config& config, const std::filesystem::path& checkpoint,
                           const std::filesystem::path& base) {
  planner::Job job;
  job.model = checkpoint;
  job.precision = config.training.precision;
  job.left_out_kernels = left_out_kernels(config.training);
  if (models::is_adapter(checkpoint)) {
    job.model = models::base_of_adapter(checkpoint, base);
    job.lora = models::read_adapter_settings(checkpoint, job.model);
  }
  return job;
}

std::vector<int64_t> end_tokens_of(const std::filesystem::path& checkpoint, const models::Processor& processor,
                                   const std::filesystem::path& base) {
  const auto place = models::is_adapter(checkpoint) ? models::base_and_adapter(checkpoint, base)
                                                    : models::BaseAndAdapter{.base = checkpoint, .adapter = {}};
  return models::end_token_ids(place.base, processor, place.adapter);
}

planner::EvaluationPlan plan_on_card(const Config& config, planner::EvaluationRequest request, at::Device device) {
  memory::set_expandable_segments(config.memory.expandable_segments);
  const auto card = planner::card_of_device(memory::describe(device));
  request.limit_bytes =
      planner::limit_of(card, config.memory.mode, config.memory.limit_gb, /*world_size=*/1).limit_bytes;
  request.wanted_bytes = request.limit_bytes;
  return planner::plan_evaluation(request, planner::rehearsal_card(card));
}

planner::EvaluationPlan plan_on_host(const Config& config, planner::EvaluationRequest request, int64_t making_bytes) {
  request.largest_batch = kBatchOnHost;
  const planner::HostNeeds needs{.process_bytes = memory::host_bytes() + io::row_group_memory().bytes_to_come(),
                                 .sample_bytes = largest_sample(request.candidates),
                                 .making_bytes = making_bytes,
                                 .samples_of_step = request.batch_size.value_or(kBatchOnHost),
                                 .threads = config.data.num_workers};
  request.limit_bytes =
      planner::host_limit(memory::host_room(), config.memory.limit_gb, config.memory.mode, needs).tensor_bytes;
  request.wanted_bytes = request.limit_bytes;
  return planner::plan_evaluation_on_host(request);
}

}  // namespace

PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base) {
  open_kernels(config.training, device);
  const EvaluationSet set(config, processor, /*cache=*/{});
  PlannedEvaluation planned{.records = set.records(),
                            .dropped = set.dropped(),
                            .notices_are_logged = set.outlines().are_all,
                            .settings = {.device = device,
                                         .num_workers = config.data.num_workers,
                                         .answers = config.evaluation.answers,
                                         .max_new_tokens = config.evaluation.max_new_tokens,
                                         .end_token_ids = end_tokens_of(checkpoint, processor, base),
                                         .on_bad_sample = config.data.on_bad_sample}};
  planned.settings.batch_size = config.evaluation.batch_size.value_or(planned.settings.batch_size);
  try {
    auto request = evaluation_request(config, set, evaluated_job(config, checkpoint, base));
    const auto plan = device.is_cpu() ? plan_on_host(config, std::move(request), set.making_bytes())
                                      : plan_on_card(config, std::move(request), device);
    planned.settings.batch_size = plan.batch_size;
    planned.settings.layout = plan.layout;
    spdlog::info("batches of {}, planned in {:.1f} s", plan.batch_size, plan.seconds);
    if (!plan.fits) {
      spdlog::warn(
          "the largest samples may not fit into memory in batches of {}; those that do not are cut, at last left out",
          plan.batch_size);
    }
  } catch (const std::exception& error) {
    spdlog::warn("the evaluation is not planned ({}); it goes in batches of {}", first_line(error.what()),
                 planned.settings.batch_size);
  }
  return planned;
}

}  // namespace vlmtrain::train

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

planner::Job make_evaluation_job(const Config& config, const std::filesystem::path& checkpoint,
                                 const std::filesystem::path& base) {
  planner::Job job;
  job.model = checkpoint;
  job.precision = config.training.precision;
  job.disabled_kernels = find_disabled_kernels(config.training);
  if (models::is_adapter(checkpoint)) {
    job.model = models::find_adapter_base(checkpoint, base);
    job.lora = models::read_adapter_settings(checkpoint, job.model);
  }
  return job;
}

std::vector<int64_t> find_end_tokens(const std::filesystem::path& checkpoint, const models::Processor& processor,
                                     const std::filesystem::path& base) {
  const auto folders = models::is_adapter(checkpoint) ? models::resolve_base_and_adapter(checkpoint, base)
                                                      : models::BaseAndAdapter{.base = checkpoint, .adapter = {}};
  return models::load_eos_token_ids(folders.base, processor, folders.adapter);
}

planner::EvaluationPlan plan_on_gpu(const Config& config, planner::EvaluationRequest request, at::Device device) {
  memory::set_expandable_segments(config.memory.expandable_segments);
  const auto target = planner::make_target_gpu(memory::describe(device));
  request.limit_bytes =
      planner::compute_memory_limit(target, config.memory.mode, config.memory.limit_gb, /*world_size=*/1).limit_bytes;
  request.target_bytes = request.limit_bytes;
  return planner::plan_evaluation(request, planner::make_virtual_gpu(target));
}

planner::EvaluationPlan plan_on_host(const Config& config, planner::EvaluationRequest request, int64_t decode_bytes) {
  request.max_batch_size = kCpuEvalBatchSize;
  const planner::CpuMemoryNeeds needs{
      .process_bytes = memory::host_bytes() + io::get_row_group_memory().compute_additional_bytes(),
      .sample_bytes = compute_largest_sample_bytes(request.candidates),
      .decode_bytes = decode_bytes,
      .samples_per_step = request.batch_size.value_or(kCpuEvalBatchSize),
      .loader_threads = config.data.num_workers};
  request.limit_bytes = planner::compute_cpu_memory_limit(memory::get_available_host_memory(), config.memory.limit_gb,
                                                          config.memory.mode, needs)
                            .tensor_bytes;
  request.target_bytes = request.limit_bytes;
  return planner::plan_cpu_evaluation(request);
}

}  // namespace

PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base) {
  load_kernels(config.training, device);
  const EvaluationSet evaluation_set(config, processor, /*cache=*/{});
  PlannedEvaluation result{.records = evaluation_set.records(),
                           .num_dropped = evaluation_set.num_dropped(),
                           .notices_are_logged = evaluation_set.sample_index().is_complete,
                           .settings = {.device = device,
                                        .num_workers = config.data.num_workers,
                                        .answers = config.evaluation.answers,
                                        .max_new_tokens = config.evaluation.max_new_tokens,
                                        .eos_token_ids = find_end_tokens(checkpoint, processor, base),
                                        .on_bad_sample = config.data.on_bad_sample}};
  result.settings.batch_size = config.evaluation.batch_size.value_or(result.settings.batch_size);
  try {
    auto request = make_evaluation_request(config, evaluation_set, make_evaluation_job(config, checkpoint, base));
    const auto plan = device.is_cpu() ? plan_on_host(config, std::move(request), evaluation_set.decode_bytes())
                                      : plan_on_gpu(config, std::move(request), device);
    result.settings.batch_size = plan.batch_size;
    result.settings.layout = plan.layout;
    spdlog::info("batches of {}, planned in {:.1f} s", plan.batch_size, plan.seconds);
    if (!plan.fits) {
      spdlog::warn(
          "the largest samples may not fit into memory in batches of {}; those that do not are cut, at last left out",
          plan.batch_size);
    }
  } catch (const std::exception& error) {
    spdlog::warn("the evaluation is not planned ({}); it goes in batches of {}", get_first_line(error.what()),
                 result.settings.batch_size);
  }
  return result;
}

}  // namespace vlmtrain::train

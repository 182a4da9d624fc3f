#include "app/planned.h"

#include <utility>

#include "app/described_samples.h"
#include "app/planned_config.h"
#include "app/preset_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_remarks.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/sample_limits.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::app {

namespace {

planner::FlagSyntax make_flag_syntax(const PlanArguments& arguments) {
  planner::FlagSyntax syntax;
  // The card of this machine is what it is: another one is typed as its size.
  syntax.gpu_by_size = arguments.gpu.empty();
  syntax.gpu = syntax.gpu_by_size ? "--gpu-gb {}" : "--gpu {}";
  if (arguments.finetune == "full") syntax.lora_argument = "--finetune lora";
  return syntax;
}

/// Everything of a request but what the samples are.
void fill_request(planner::PlanRequest& request, const PlanArguments& arguments, const std::string& model) {
  request.workload.nodes = arguments.nodes;
  request.job.nodes = arguments.nodes;
  request.workload.network_gbit = arguments.network_gbit;
  request.model = model;
  request.flags = make_flag_syntax(arguments);
  request.with_timeline = !arguments.timeline.empty();
}

void plan_dataset(const PlanArguments& arguments, const train::Config& config, const std::string& model,
                  const planner::TargetGpu& target, const std::function<void(const planner::PlanRequest&)>& callback) {
  const auto records = train::open_training_records(config);
  const auto processor =
      models::load_processor(config.model.path, train::make_processor_settings(config.data, config.model.adapter));
  auto inputs = train::prepare_planning_inputs(*records, *processor, config, arguments.world_size);
  auto request =
      train::build_plan_request(config, train::make_job(config, inputs.tasks), target, std::move(inputs.workload));
  request.sample_limits = train::make_sample_limits(*records, config, request.workload);
  fill_request(request, arguments, model);
  callback(request);
}

void plan_synthetic_samples(const PlanArguments& arguments, const train::Config& config, const std::string& model,
                            const planner::TargetGpu& target,
                            const std::function<void(const planner::PlanRequest&)>& callback) {
  const SyntheticSamples samples(arguments, config);
  auto request = train::build_plan_request(config, train::make_job(config), target, samples.workload());
  for (const auto& remark : samples.remarks()) spdlog::warn("{}", remark);
  request.sample_limits = samples.limits();
  fill_request(request, arguments, model);
  callback(request);
}

}  // namespace

void make_plan_request(const PlanArguments& arguments,
                       const std::function<void(const planner::PlanRequest&)>& callback) {
  const train::Config parsed_config = make_plan_config(arguments);
  const auto plan_with_model = [&](const train::Config& config, const PresetFolder* preset) {
    for (const auto& remark : models::list_checkpoint_remarks(config.model.path)) spdlog::warn("{}", remark);
    const planner::TargetGpu target = resolve_target_gpu(arguments);
    if (config.data.train.empty() || arguments.has_sample_flags()) {
      plan_synthetic_samples(arguments, config, parsed_config.model.path, target, callback);
      return;
    }
    if (preset != nullptr) preset->require_tokenizer();
    plan_dataset(arguments, config, parsed_config.model.path, target, callback);
  };
  with_model_folder(parsed_config, arguments.tokenizer, plan_with_model);
}

}  // namespace vlmtrain::app

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
#include "vlmtrain/train/setup.h"

namespace vlmtrain::app {

namespace {

planner::CommandWords words_for(const PlanArguments& arguments) {
  planner::CommandWords words;
  // The card of this machine is what it is: another one is typed as its size.
  words.card_by_size = arguments.gpu.empty();
  words.card = words.card_by_size ? "--gpu-gb {}" : "--gpu {}";
  if (arguments.finetune == "full") words.adapters = "--finetune lora";
  return words;
}

/// Everything of a request but what the samples are.
void complete(planner::PlanRequest& request, const PlanArguments& arguments, const std::string& model) {
  request.workload.nodes = arguments.nodes;
  request.job.nodes = arguments.nodes;
  request.workload.network_gbit = arguments.network_gbit;
  request.model = model;
  request.words = words_for(arguments);
  request.with_timeline = !arguments.timeline.empty();
}

void with_data_set(const PlanArguments& arguments, const train::Config& config, const std::string& model,
                   const planner::TargetCard& card, const std::function<void(const planner::PlanRequest&)>& use) {
  const auto records = train::training_records(config);
  const auto processor =
      models::load_processor(config.model.path, train::processor_settings(config.data, config.model.adapter));
  auto planned = train::look_at_data_to_plan(*records, *processor, config, arguments.world_size);
  auto request = train::plan_request(config, train::job_of(config, planned.tasks), card, std::move(planned.workload));
  request.sample_limits = train::sample_limits(*records, config, request.workload);
  complete(request, arguments, model);
  use(request);
}

void with_described_samples(const PlanArguments& arguments, const train::Config& config, const std::string& model,
                            const planner::TargetCard& card,
                            const std::function<void(const planner::PlanRequest&)>& use) {
  const DescribedSamples samples(arguments, config);
  auto request = train::plan_request(config, train::job_of(config), card, samples.workload());
  for (const auto& remark : samples.remarks()) spdlog::warn("{}", remark);
  request.sample_limits = samples.limits();
  complete(request, arguments, model);
  use(request);
}

}  // namespace

void with_plan_request(const PlanArguments& arguments, const std::function<void(const planner::PlanRequest&)>& use) {
  const train::Config typed = config_of(arguments);
  const auto plan_for = [&](const train::Config& config, const PresetFolder* preset) {
    for (const auto& remark : models::checkpoint_remarks(config.model.path)) spdlog::warn("{}", remark);
    const planner::TargetCard card = card_of(arguments);
    if (config.data.train.empty() || arguments.describes_samples()) {
      with_described_samples(arguments, config, typed.model.path, card, use);
      return;
    }
    if (preset != nullptr) preset->require_tokenizer();
    with_data_set(arguments, config, typed.model.path, card, use);
  };
  with_model_folder(typed, arguments.tokenizer, plan_for);
}

}  // namespace vlmtrain::app

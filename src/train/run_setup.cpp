#include "train/run_setup.h"

#include <algorithm>
#include <cmath>

#include "train/data_check.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/planner/virtual_card.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/sample_limits.h"
#include "vlmtrain/train/setup.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::train {

bool is_rehearsal() {
  return planner::on_virtual_card();
}

std::filesystem::path run_folder(const Config& config) {
  const std::filesystem::path folder = config.output.dir;
  return is_rehearsal() ? folder / fmt::format("virtual-{}", vgpu::attached()->card()) : folder;
}

RunSetup::RunSetup(const Config& config, at::Device device)
    : folder(run_folder(config)),
      records(read_records(config.data.train)),
      processor(models::load_processor(config.model.path, processor_settings(config.data, config.data.train))),
      checkpoints(folder, config.output.keep),
      ledger(config.data.train, std::ssize(records)),
      tasks(config.training.balance, data::Tasks(records)) {
  checkpoints.check();
  find_newest(config);
  const data::Outlines outlines = look_at_data(records, *processor, config, folder / "data_check.jsonl");
  settle_bad_samples(outlines, config, records, ledger, folder / "ledger.json");
  const int64_t usable = ledger.samples() - ledger.count(data::SampleStatus::kDropped);
  if (!resumed) state.total_steps = total_steps(config.training, usable);
  schedule.total_steps = state.total_steps.value_or(total_steps(config.training, std::ssize(records)));
  schedule.shape = config.training.lr_scheduler;
  schedule.warmup_steps = std::llround(config.training.warmup_ratio * static_cast<double>(schedule.total_steps));
  make_plan(config, device, workload_of(records, outlines, config), outlines.making_bytes);
  load(config, device);
}

void RunSetup::find_newest(const Config& config) {
  const auto newest = checkpoints.newest();
  const auto fingerprint = run_fingerprint(config, std::ssize(records));
  resumed = newest.has_value();
  if (newest && config.resume == Resume::kNever) {
    throw usage_error("output.dir: {} holds a run already ({}) and training.resume is never; choose another folder",
                      folder.string(), newest->filename().string());
  }
  if (newest) {
    state =
        load_run_state(*newest, fingerprint,
                       {.samples = std::ssize(records), .steps = total_steps(config.training, std::ssize(records))});
    ledger = data::Ledger::restore(load_ledger(*newest), config.data.train, std::ssize(records), state.cursor,
                                   static_cast<uint64_t>(config.training.seed));
  }
  state.fingerprint = fingerprint;
}

void RunSetup::make_plan(const Config& config, at::Device device, planner::Workload workload, int64_t making_bytes) {
  const auto task_settings = tasks.initial_settings();
  auto limits = sample_limits(records, config, workload);
  if (!device.is_cpu()) {
    try {
      plan.emplace(config, device, std::move(workload), std::move(limits), task_settings, folder);
    } catch (const PlanningFailed& failure) {
      go_on_without_plan(config, device, failure, folder);
    }
    return;
  }
  std::optional<HostChoices> kept;
  if (!state.host_memory.is_null()) kept = HostChoices::of_json(state.host_memory, checkpoints.newest()->string());
  host = std::make_unique<HostRun>(config, std::move(workload), std::move(limits), making_bytes, task_settings, folder,
                                   kept);
  state.host_memory = host->fixed().to_json();
}

void RunSetup::load(const Config& config, at::Device device) {
  const auto newest = checkpoints.newest();
  // A virtual card holds no values.
  if (!is_rehearsal()) base = std::make_unique<models::BaseWeights>(config.model.path, config.model.adapter);
  model = load_model(config, device, newest, /*with_values=*/!is_rehearsal());
  if (base && newest && !model->parameters().lora()) {
    models::restore_frozen(*model, *newest, *base, static_cast<uint64_t>(config.training.seed));
  }
  if (plan || host) {
    choices = plan ? plan->choices() : host->fixed().choices;
  } else {
    choices = cautious_choices(config, model->vision_blocks(), model->language_blocks());
  }
  choices.recompute.vision = std::min(choices.recompute.vision, model->vision_blocks());
  choices.recompute.language = std::min(choices.recompute.language, model->language_blocks());
  engine::AdamWSettings settings = adamw_settings(config.training);
  settings.separate_tasks = tasks.initial_settings().separate();
  optimizer = std::make_unique<engine::AdamW>(model->parameters(), settings);
  if (!newest) return;
  load_optimizer(*newest, *optimizer);
  tasks.restore(state.task_balance, newest->string());
}

}  // namespace vlmtrain::train

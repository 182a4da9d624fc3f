#include "train/run_setup.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/planner/virtual_card.h"
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
  schedule.total_steps = total_steps(config.training, std::ssize(records));
  schedule.shape = config.training.lr_scheduler;
  schedule.warmup_steps = std::llround(config.training.warmup_ratio * static_cast<double>(schedule.total_steps));
  if (!device.is_cpu()) plan.emplace(config, device, records, *processor, tasks.initial_settings(), folder);
  load(config, device);
}

void RunSetup::load(const Config& config, at::Device device) {
  const auto fingerprint = run_fingerprint(config, std::ssize(records));
  const auto newest = checkpoints.newest();
  resumed = newest.has_value();
  if (newest && config.resume == Resume::kNever) {
    throw usage_error("output.dir: {} holds a run already ({}) and training.resume is never; choose another folder",
                      folder.string(), newest->filename().string());
  }
  if (newest) state = load_run_state(*newest, fingerprint);
  state.fingerprint = fingerprint;
  if (device.is_cpu()) {
    std::optional<HostChoices> kept;
    if (!state.host_memory.is_null()) kept = HostChoices::of_json(state.host_memory, newest->string());
    host = std::make_unique<HostRun>(config, records, *processor, tasks.initial_settings(), folder, kept);
    state.host_memory = host->fixed().to_json();
  }
  // A virtual card holds no values.
  model = load_model(config, device, newest, /*with_values=*/!is_rehearsal());
  choices = plan ? plan->choices() : host->fixed().choices;
  choices.recompute.vision = std::min(choices.recompute.vision, model->vision_blocks());
  choices.recompute.language = std::min(choices.recompute.language, model->language_blocks());
  engine::AdamWSettings settings = adamw_settings(config.training);
  settings.separate_tasks = tasks.initial_settings().separate();
  optimizer = std::make_unique<engine::AdamW>(model->parameters(), settings);
  if (!newest) return;
  load_optimizer(*newest, *optimizer);
  tasks.restore(state.task_balance, newest->string());
  ledger = data::Ledger::restore(load_ledger(*newest), config.data.train, std::ssize(records), state.cursor,
                                 static_cast<uint64_t>(config.training.seed));
}

}  // namespace vlmtrain::train

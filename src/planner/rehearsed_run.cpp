#include "planner/rehearsed_run.h"

#include "vlmtrain/engine/step.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::planner {

namespace {

std::vector<data::Sample> samples_of(const std::vector<SampleGroup>& groups) {
  std::vector<data::Sample> samples;
  for (const auto& group : groups) {
    samples.insert(samples.end(), static_cast<size_t>(group.count), data::sample_of(group.shape));
  }
  return samples;
}

}  // namespace

RehearsedRun::RehearsedRun(const Job& job, at::Device device)
    : device_(device),
      tasks_(job.tasks),
      model_(models::build_model(job.model, device, engine::dtype_of(job.precision), job.lora, job.quantization)) {
  models::freeze(*model_, job.frozen);
  std::optional<engine::LossScaleSettings> loss_scale;
  if (job.precision == engine::Precision::kFp16) loss_scale.emplace();
  optimizer_ = std::make_unique<engine::AdamW>(model_->parameters(),
                                               engine::AdamWSettings{.max_grad_norm = job.max_grad_norm,
                                                                     .loss_scale = loss_scale,
                                                                     .states = job.optimizer_states,
                                                                     .separate_tasks = job.tasks.separate()});
}

void RehearsedRun::step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout) {
  try {
    const auto result = engine::optimizer_step(
        *model_, *optimizer_, samples_of(samples), [] { return engine::LearningRates{}; }, layout, device_, tasks_);
    scalars_.emplace(result.numbers);
  } catch (const engine::StepOutOfMemory& error) {
    if (error.scarce() == memory::Scarce::kHost) throw rehearsal_lacks_memory(error.what());
    throw;
  }
}

UserError rehearsal_lacks_memory(const std::string& reason) {
  return run_error("the rehearsal process ran out of the host's memory: {}; give the job more, such as SLURM's --mem",
                   reason);
}

engine::StepLayout layout_of(const Choices& choices, const std::vector<SampleGroup>& samples) {
  int64_t count = 0;
  for (const auto& group : samples) count += group.count;
  return layout_of(choices, count);
}

}  // namespace vlmtrain::planner

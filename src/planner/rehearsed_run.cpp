#include "planner/rehearsed_run.h"

#include <algorithm>

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

RehearsedRun::RehearsedRun(const Job& job, at::Device device, bool trains)
    : device_(device),
      tasks_(job.tasks),
      model_(models::build_model(job.model, device, engine::dtype_of(job.precision), job.lora, job.quantization)) {
  if (!trains) return;
  models::freeze(*model_, job.frozen);
  std::optional<engine::LossScaleSettings> loss_scale;
  if (job.precision == engine::Precision::kFp16) loss_scale.emplace();
  sums_ = std::make_unique<engine::GradientSums>(model_->parameters(), job.tasks.groups());
  optimizer_ = std::make_unique<engine::AdamW>(
      model_->parameters(), *sums_,
      engine::AdamWSettings{
          .max_grad_norm = job.max_grad_norm, .loss_scale = loss_scale, .states = job.optimizer_states});
}

void RehearsedRun::step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout) {
  try {
    const auto result = engine::optimizer_step(
        *model_, *sums_, *optimizer_, samples_of(samples), [] { return engine::LearningRates{}; }, layout, device_,
        tasks_);
    scalars_.emplace(result.numbers);
  } catch (const engine::StepOutOfMemory& error) {
    if (error.scarce() == memory::Scarce::kHost) throw rehearsal_lacks_memory(error.what());
    throw;
  }
}

void RehearsedRun::evaluate(const EvaluatedBatch& batch) const {
  // Further ones take no more: their keys and values have their place from the first on.
  constexpr int64_t kNewTokens = 3;
  const engine::GenerateSettings generation{.device = device_,
                                            .max_new_tokens = std::min(kNewTokens, batch.max_new_tokens),
                                            .room_for_tokens = batch.max_new_tokens};
  const auto samples = samples_of(batch.samples);
  std::vector<data::Sample> prompts;
  for (const auto& group : batch.samples) {
    data::SampleShape question = group.shape;
    question.label_tokens = 0;
    const auto count = batch.max_new_tokens > 0 ? static_cast<size_t>(group.count) : 0;
    prompts.insert(prompts.end(), count, data::sample_of(question));
  }
  const auto first = [](const std::vector<data::Sample>& all, size_t count) {
    return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  };
  if (const size_t part = samples.size() / 2; part > 0) {
    engine::evaluate_batch(*model_, first(samples, part), first(prompts, part), batch.layout, generation);
  }
  engine::evaluate_batch(*model_, samples, prompts, batch.layout, generation);
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

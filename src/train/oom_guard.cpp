#include "train/oom_guard.h"

#include <ATen/Context.h>

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/recovery.h"

namespace vlmtrain::train {

namespace {

UserError device_is_full(const std::string& reason) {
  return run_error(
      "the device has no memory left for anything, which no sample is to blame for: {}; see what else runs there "
      "(nvidia-smi), then start again: the run goes on from its last checkpoint",
      reason);
}

}  // namespace

OomGuard::OomGuard(models::VisionLanguageModel& model, engine::GradientSums& sums, engine::AdamW& optimizer,
                   at::Device device, OnFailure on_failure)
    : model_(model), sums_(sums), optimizer_(optimizer), device_(device), on_failure_(std::move(on_failure)) {}

GuardedStep OomGuard::step(std::span<const data::Sample> samples, const engine::StepLayout& layout, uint64_t seed,
                           const engine::RatesSource& rates, const engine::TaskSettings& tasks) {
  GuardedStep done{.result = {}, .layout = layout, .failed_attempts = 0};
  Taken taken;
  for (;; ++done.failed_attempts) {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    generator.set_current_seed(seed);
    try {
      done.result = engine::optimizer_step(model_, sums_, optimizer_, samples, rates, done.layout, device_, tasks);
      return done;
    } catch (const engine::StepOutOfMemory& error) {
      recover(error.scarce());
      done.layout = next_layout(done.layout, error, taken);
      on_failure_(error.what(), done.layout);
    }
  }
}

/// The failed attempt's tensors are gone by now, but for the gradients that the parameters hold.
void OomGuard::recover(memory::Scarce scarce) {
  if (scarce != memory::Scarce::kDevice) memory::release_pinned(device_);
  sums_.drop();
  memory::release_unused(device_);
}

engine::StepLayout OomGuard::next_layout(const engine::StepLayout& failed, const engine::StepOutOfMemory& error,
                                         Taken& taken) const {
  if (error.scarce() == memory::Scarce::kDriver && !std::exchange(taken.emptied, true)) return failed;
  if (!std::exchange(taken.halved, true)) {
    if (const auto cut = engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Cut::kAllAsLarge)) {
      return *cut;
    }
  }
  const models::RecomputeBlocks all_blocks{model_.vision_blocks(), model_.language_blocks()};
  if (const auto least = engine::with_least_memory(failed, all_blocks)) return *least;
  if (const auto singles = engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Cut::kSingles)) {
    return *singles;
  }
  if (const auto failure = device_.is_cpu() ? std::nullopt : memory::failure_of(device_)) {
    throw device_is_full(*failure);
  }
  if (error.micro_batch() < 0) {
    throw UserError(
        ExitCode::kDoesNotFit,
        fmt::format("the optimizer's step does not fit into {}: {}; free memory there, or train less of the "
                    "model (lora.rank, model.freeze_…)",
                    memory::name_of(error.scarce()), error.what()));
  }
  throw SampleDoesNotFit(failed.first_sample(error.micro_batch()), error.scarce(), error.what());
}

}  // namespace vlmtrain::train

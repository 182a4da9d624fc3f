#include "train/oom_guard.h"

#include <ATen/Context.h>

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

OomGuard::OomGuard(models::VisionLanguageModel& model, engine::AdamW& optimizer, at::Device device,
                   OnFailure on_failure)
    : model_(model), optimizer_(optimizer), device_(device), on_failure_(std::move(on_failure)) {}

GuardedStep OomGuard::step(std::span<const data::Sample> samples, const engine::StepLayout& layout, uint64_t seed,
                           const engine::RatesSource& rates, const engine::TaskSettings& tasks) {
  GuardedStep done{.result = {}, .layout = layout, .failed_attempts = 0};
  for (;; ++done.failed_attempts) {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    generator.set_current_seed(seed);
    try {
      done.result = engine::optimizer_step(model_, optimizer_, samples, rates, done.layout, device_, tasks);
      return done;
    } catch (const engine::StepOutOfMemory& error) {
      // The failed attempt's tensors are gone by now, but for the gradients that the optimizer holds.
      optimizer_.drop_gradients();
      memory::release_unused(device_);
      done.layout = next_layout(done.layout, error, done.failed_attempts);
      on_failure_(error.what(), done.layout);
    }
  }
}

engine::StepLayout OomGuard::next_layout(const engine::StepLayout& failed, const engine::StepOutOfMemory& error,
                                         int64_t failed_attempts) const {
  if (failed_attempts == 0) {
    if (const auto cut = engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Cut::kAllAsLarge)) {
      return *cut;
    }
  }
  const models::RecomputeBlocks all_blocks{model_.vision_blocks(), model_.language_blocks()};
  if (const auto least = engine::with_least_memory(failed, all_blocks)) return *least;
  if (const auto singles = engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Cut::kSingles)) {
    return *singles;
  }
  if (error.micro_batch() < 0) {
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("the optimizer's step does not fit into the device's memory: {}; free memory there, or "
                                "train less of the model (lora.rank, model.freeze_…)",
                                error.what()));
  }
  throw SampleDoesNotFit(failed.first_sample(error.micro_batch()), error.what());
}

}  // namespace vlmtrain::train

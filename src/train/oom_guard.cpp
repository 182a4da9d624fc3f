#include "train/oom_guard.h"

#include <ATen/Context.h>

#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/recovery.h"

namespace vlmtrain::train {

using engine::Verdict;
using memory::Scarce;

namespace {

UserError device_is_full(const std::string& reason) {
  return run_error(
      "the device has no memory left for anything, which no sample is to blame for: {}; see what else runs there "
      "(nvidia-smi), then start again: the run goes on from its last checkpoint",
      reason);
}

}  // namespace

OomGuard::OomGuard(engine::Training& training, at::Device device, const engine::Consensus& consensus,
                   OnFailure on_failure)
    : training_(training), device_(device), consensus_(consensus), on_failure_(std::move(on_failure)) {}

namespace {

/// What those say that have anything to say; of several processes by their ranks.
std::string reasons_of(const std::vector<std::string>& each) {
  if (each.size() == 1) return each.front();
  std::string text;
  for (size_t rank = 0; rank < each.size(); ++rank) {
    if (!each[rank].empty()) text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, each[rank]);
  }
  return text;
}

}  // namespace

DoneStep OomGuard::step(const engine::Objective& objective, std::span<const data::Sample> samples,
                        const engine::StepLayout& layout, uint64_t seed, const RatesSource& rates) {
  const engine::StepInput input{
      .objective = objective, .samples = samples, .normalizers = consensus_.sum(objective.normalizers(samples))};
  DoneStep done{.result = {}, .layout = layout};
  Taken taken;
  for (;; ++done.failed_attempts) {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    generator.set_current_seed(seed);
    const Attempt own = attempt(input, rates, done);
    if (own.is_done) return done;
    recover(own.failure ? own.failure->scarce() : Scarce::kDevice);
    std::optional<SampleDoesNotFit> hopeless;
    try {
      if (own.failure) done.layout = next_layout(done.layout, *own.failure, taken);
    } catch (const SampleDoesNotFit& error) {
      hopeless = error;
    }
    if (consensus_.worst(hopeless ? Verdict::kLeaveOut : Verdict::kFine) == Verdict::kLeaveOut) {
      const std::string reasons = reasons_of(consensus_.each(hopeless ? hopeless->what() : ""));
      throw hopeless ? *hopeless : SampleDoesNotFit(std::nullopt, Scarce::kDevice, reasons);
    }
    on_failure_(reasons_of(consensus_.each(own.failure ? own.failure->what() : "")), done.layout);
  }
}

OomGuard::Attempt OomGuard::attempt(const engine::StepInput& input, const RatesSource& rates, DoneStep& done) {
  engine::Step step(training_, input, consensus_);
  Attempt own;
  const auto goes_well = [&](const auto& phase) {
    try {
      phase();
    } catch (const engine::StepOutOfMemory& error) {
      own.failure = error;
    }
    return consensus_.worst(own.failure ? Verdict::kRedoSmaller : Verdict::kFine) == Verdict::kFine;
  };
  if (!goes_well([&] { step.accumulate(done.layout); })) return own;
  const engine::LearningRates chosen = rates();
  if (!goes_well([&] { step.prepare(); })) return own;
  done.result = step.apply(chosen);
  own.is_done = true;
  return own;
}

/// The failed attempt's tensors are gone by now, but for the gradient sums.
void OomGuard::recover(memory::Scarce scarce) {
  if (scarce != Scarce::kDevice) memory::release_pinned(device_);
  training_.sums.drop();
  memory::release_unused(device_);
}

engine::StepLayout OomGuard::next_layout(const engine::StepLayout& failed, const engine::StepOutOfMemory& error,
                                         Taken& taken) const {
  if (error.scarce() == Scarce::kDriver && !std::exchange(taken.emptied, true)) return failed;
  if (!std::exchange(taken.halved, true)) {
    if (auto cut = engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Division::kAllAsLarge)) {
      cut->copies_ahead = false;
      return std::move(*cut);
    }
  }
  const models::RecomputeBlocks all_blocks{training_.model.vision_blocks(), training_.model.language_blocks()};
  if (const auto least = engine::with_least_memory(failed, all_blocks)) return *least;
  if (const auto singles =
          engine::with_smaller_micro_batches(failed, error.micro_batch(), engine::Division::kSingles)) {
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
  throw SampleDoesNotFit(failed.cut.micro_batch(error.micro_batch()).front(), error.scarce(), error.what());
}

}  // namespace vlmtrain::train

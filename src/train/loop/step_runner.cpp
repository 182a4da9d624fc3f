#include "train/loop/step_runner.h"

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kCacheEmptyInterval = 100;

data::LoaderSettings make_step_loader_settings(const Config& config, const RunSetup& run, const RankGroup& ranks) {
  data::LoaderSettings settings = make_loader_settings(config);
  settings.shard = ranks.make_loader_shard();
  settings.began_ignoring_keys = run.began_ignoring_keys;
  if (run.host_plan) settings.prefetch_bytes = run.host_plan->prefetch_bytes();
  return settings;
}

std::unique_ptr<LookAheadClient> make_look_ahead(const Config& config, const RunSetup& run, at::Device device,
                                                 const StepRunner::OnEvent& on_event) {
  if (!run.plan || !config.memory.look_ahead) return nullptr;
  return std::make_unique<LookAheadClient>(
      run.plan->look_ahead_settings(), device,
      [on_event](report::EventKind kind, const std::string& message) { on_event(kind, message, {}); });
}

}  // namespace

StepRunner::StepRunner(const Config& config, RunSetup& run, at::Device device, const RankGroup& ranks, OnEvent on_event)
    : config_(config),
      run_(run),
      device_(device),
      consensus_(ranks.consensus()),
      on_event_(std::move(on_event)),
      loader_(*run.records, *run.processor, *run.order, make_step_loader_settings(config, run, ranks), run.state.cursor,
              run.ledger),
      look_ahead_(make_look_ahead(config, run, device, on_event_)),
      prefetcher_(loader_, run.step_config, *run.tasks, look_ahead_.get(), run.state.step + 1, run.total_steps),
      guard_(*run.training, device, consensus_,
             [this](const std::string& reason, const engine::StepLayout& next) { on_failure(reason, next); }) {}

CompletedStep StepRunner::run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                              const LearningRatesFunction& compute_rates) {
  if (!step.plan.fits) warn_oversized(step);
  if (step.plan.empty_cache_first) memory::release_unused(device_);
  memory::reset_peaks(device_);
  const auto host_limit = run_.host_plan ? run_.host_plan->make_allocation_limit() : nullptr;
  for (;;) {
    try {
      CompletedStep completed = guard_.step(objective, step.batch.samples, step.plan.layout, seed, compute_rates);
      completed.memory = memory::device_memory(device_);
      return completed;
    } catch (const OversizedSampleError& error) {
      drop_sample(step, error);
    }
  }
}

void StepRunner::after_step(const PlannedStep& step, const CompletedStep& completed) {
  if (look_ahead_) look_ahead_->compare(step.step, step.plan, completed.memory, completed.failed_attempts == 0);
  empty_fragmented_cache(step.step, completed.memory);
}

void StepRunner::release_device_memory() {
  if (device_.is_cpu()) return;
  memory::release_unused(device_);
  if (look_ahead_) look_ahead_->mark_desynchronized();
}

/// The twin says that the step does not fit however it is cut. It is tried in the smallest pieces: what it has to fit
/// into is the plan's limit, below the card's.
void StepRunner::warn_oversized(const PlannedStep& step) const {
  std::vector<std::string> ids;
  if (step.plan.oversized_sample) {
    ids.push_back(step.batch.samples.at(static_cast<size_t>(*step.plan.oversized_sample)).id);
  }
  on_event_(report::EventKind::kLookAhead,
            fmt::format("step {}: {} is foreseen not to fit within the plan's limit less the twin's margin, even alone "
                        "and with everything recomputed; it is tried, with an empty cache",
                        step.step, ids.empty() ? "it" : "sample " + ids.front()),
            ids);
}

/// Drops a sample that does not fit, or stops the run over it. In every process: the order of samples is theirs all.
void StepRunner::drop_sample(PlannedStep& step, const OversizedSampleError& error) {
  constexpr const char* kReason = "does not fit into memory";
  std::vector<int64_t> indices;
  if (error.position()) indices.push_back(step.batch.samples.at(static_cast<size_t>(*error.position())).index);
  const auto dropped = consensus_.union_over_ranks(indices);
  for (const int64_t index : dropped) {
    const std::string id = run_.records->at_without_bytes(index).id;
    const std::string message =
        fmt::format("sample {}: does not fit into {}, even alone and with everything recomputed ({})", id,
                    memory::to_string(error.memory_kind()), error.what());
    if (config_.data.on_bad_sample == data::BadSamplePolicy::kFail) {
      run_.ledger.mark_failed(index, id, kReason, message);
      throw UserError(ExitCode::kDoesNotFit,
                      message +
                          "; make it smaller (data.image_max_pixels, data.max_length), take it out, or go on "
                          "without such samples: data.on_bad_sample=skip");
    }
    run_.ledger.mark_dropped(index, id, kReason, message);
    on_event_(report::EventKind::kAnomaly, message + "; it is left out, and the next one of the order takes its place",
              {id});
  }
  if (run_.ledger.count(data::SampleStatus::kDropped) == run_.ledger.samples()) {
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("step {}: none of the samples fits into the device's memory; make them smaller "
                                "(data.image_max_pixels, data.max_length)",
                                step.step));
  }
  prefetcher_.replace(step, dropped);
}

void StepRunner::on_failure(const std::string& reason, const engine::StepLayout& next) {
  on_event_(report::EventKind::kOomSplit,
            fmt::format("step {}: memory ran out ({}); the step is done again in {} micro-batches", run_.state.step + 1,
                        reason, next.split.micro_batches()),
            {});
  if (look_ahead_) look_ahead_->raise_margin();
}

/// Before the next step, where much of what is reserved was of no use even at the peak.
void StepRunner::empty_fragmented_cache(int64_t step, const memory::DeviceMemory& memory) {
  const auto reserved = static_cast<double>(memory.reserved_peak_bytes);
  const auto unused = static_cast<double>(memory.reserved_peak_bytes - memory.allocated_peak_bytes);
  if (unused <= config_.memory.empty_cache_above * reserved) return;
  if (step < next_cache_empty_step_) return;
  next_cache_empty_step_ = step + kCacheEmptyInterval;
  on_event_(report::EventKind::kCacheEmptied,
            fmt::format("step {}: {:.0f} % of the reserved memory was not allocated at its peak; the cache is emptied",
                        step, 100 * unused / reserved),
            {});
  if (look_ahead_) {
    look_ahead_->request_release();
  } else {
    memory::release_unused(device_);
  }
}

}  // namespace vlmtrain::train

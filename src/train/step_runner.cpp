#include "train/step_runner.h"

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kStepsBetweenEmptyings = 100;

data::LoaderSettings settings_of_loader(const Config& config, const RunSetup& run, const RunRanks& ranks) {
  data::LoaderSettings settings = loader_settings(config);
  settings.share = ranks.loader_share();
  settings.read_otherwise = run.read_otherwise;
  if (run.host) settings.bytes_ahead = run.host->bytes_ahead();
  return settings;
}

std::unique_ptr<TwinLink> twin_of(const Config& config, const RunSetup& run, at::Device device,
                                  const StepRunner::OnEvent& on_event) {
  if (!run.plan || !config.memory.twin) return nullptr;
  return std::make_unique<TwinLink>(
      run.plan->twin_settings(), device,
      [on_event](report::EventKind kind, const std::string& message) { on_event(kind, message, {}); });
}

}  // namespace

StepRunner::StepRunner(const Config& config, RunSetup& run, at::Device device, const RunRanks& ranks, OnEvent on_event)
    : config_(config),
      run_(run),
      device_(device),
      consensus_(ranks.consensus()),
      on_event_(std::move(on_event)),
      loader_(*run.records, *run.processor, *run.order, settings_of_loader(config, run, ranks), run.state.cursor,
              run.ledger),
      twin_(twin_of(config, run, device, on_event_)),
      upcoming_(loader_, run.choices, *run.tasks, twin_.get(), run.state.step + 1, run.total_steps),
      guard_(*run.training, device, consensus_,
             [this](const std::string& reason, const engine::StepLayout& next) { on_failure(reason, next); }) {}

DoneStep StepRunner::run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                         const RatesSource& rates) {
  if (!step.plan.fits) warn_of(step);
  if (step.plan.release_first) memory::release_unused(device_);
  memory::reset_peaks(device_);
  const auto host_limit = run_.host ? run_.host->guard() : nullptr;
  for (;;) {
    try {
      DoneStep done = guard_.step(objective, step.batch.samples, step.plan.layout, seed, rates);
      done.memory = memory::device_memory(device_);
      return done;
    } catch (const SampleDoesNotFit& error) {
      leave_out(step, error);
    }
  }
}

void StepRunner::settle(const PlannedStep& step, const DoneStep& done) {
  if (twin_) twin_->compare(step.step, step.plan, done.memory, done.failed_attempts == 0);
  empty_fragmented_cache(step.step, done.memory);
}

void StepRunner::leave_device_as_found() {
  if (device_.is_cpu()) return;
  memory::release_unused(device_);
  if (twin_) twin_->diverge();
}

/// The twin says that the step does not fit however it is cut. It is tried in the smallest pieces: what it has to fit
/// into is the plan's limit, below the card's.
void StepRunner::warn_of(const PlannedStep& step) const {
  std::vector<std::string> ids;
  if (step.plan.sample_that_does_not) {
    ids.push_back(step.batch.samples.at(static_cast<size_t>(*step.plan.sample_that_does_not)).id);
  }
  on_event_(report::EventKind::kTwin,
            fmt::format("step {}: {} is foreseen not to fit within the plan's limit less the twin's margin, even alone "
                        "and with everything recomputed; it is tried, with an empty cache",
                        step.step, ids.empty() ? "it" : "sample " + ids.front()),
            ids);
}

/// Drops a sample that does not fit, or stops the run over it. In every process: the order of samples is theirs all.
void StepRunner::leave_out(PlannedStep& step, const SampleDoesNotFit& error) {
  constexpr const char* kReason = "does not fit into memory";
  std::vector<int64_t> own;
  if (error.place()) own.push_back(step.batch.samples.at(static_cast<size_t>(*error.place())).index);
  const auto lost = consensus_.together(own);
  for (const int64_t index : lost) {
    const std::string id = run_.records->text_at(index).id;
    const std::string message =
        fmt::format("sample {}: does not fit into {}, even alone and with everything recomputed ({})", id,
                    memory::name_of(error.scarce()), error.what());
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
  upcoming_.replace(step, lost);
}

void StepRunner::on_failure(const std::string& reason, const engine::StepLayout& next) {
  on_event_(report::EventKind::kOomSplit,
            fmt::format("step {}: memory ran out ({}); the step is done again in {} micro-batches", run_.state.step + 1,
                        reason, next.cut.micro_batches()),
            {});
  if (twin_) twin_->raise_margin();
}

/// Before the next step, where much of what is reserved was of no use even at the peak.
void StepRunner::empty_fragmented_cache(int64_t step, const memory::DeviceMemory& memory) {
  const auto reserved = static_cast<double>(memory.reserved_peak_bytes);
  const auto unused = static_cast<double>(memory.reserved_peak_bytes - memory.allocated_peak_bytes);
  if (unused <= config_.memory.empty_cache_above * reserved) return;
  if (step < next_emptying_) return;
  next_emptying_ = step + kStepsBetweenEmptyings;
  on_event_(report::EventKind::kCacheEmptied,
            fmt::format("step {}: {:.0f} % of the reserved memory was not allocated at its peak; the cache is emptied",
                        step, 100 * unused / reserved),
            {});
  if (twin_) {
    twin_->ask_for_release();
  } else {
    memory::release_unused(device_);
  }
}

}  // namespace vlmtrain::train

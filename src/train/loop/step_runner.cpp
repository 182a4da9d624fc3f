#include "train/loop/step_runner.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

/// Number of steps that are drawn in advance, so that the look-ahead dry-runs one while another
/// runs.
constexpr int64_t kNumPrefetchedSteps = 2;

/// Replaces the look-ahead's plan with the layout by the run's plan.
void discard_look_ahead_plan(PlannedStep& step) {
  step.plan = {.layout = step.layout, .empty_cache_at_start = step.plan.empty_cache_at_start};
}

std::vector<data::SampleShape> get_sample_shapes(const data::GlobalBatch& batch) {
  std::vector<data::SampleShape> shapes;
  shapes.reserve(batch.samples.size());
  for (const auto& sample : batch.samples) shapes.push_back(data::get_sample_shape(sample));
  return shapes;
}

}  // namespace

StepPrefetcher::StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config,
                               const TaskBalancer& task_balancer, LookAheadClient* look_ahead, int64_t first_step,
                               int64_t last_step)
    : loader_(loader),
      step_config_(step_config),
      task_balancer_(task_balancer),
      look_ahead_(look_ahead),
      next_step_(first_step),
      last_step_(last_step) {}

PlannedStep StepPrefetcher::next(double step_seconds) {
  const double wait_seconds = fill_prefetch_queue();
  PrefetchedStep prefetched_step = std::move(queue_.front());
  queue_.pop_front();
  if (prefetched_step.error) std::rethrow_exception(prefetched_step.error);
  PlannedStep step{.step = next_step_++,
                   .batch = std::move(prefetched_step.batch),
                   .layout = prefetched_step.layout,
                   .plan = {.layout = std::move(prefetched_step.layout)},
                   .data_wait_seconds = wait_seconds};
  if (look_ahead_ == nullptr) return step;
  step.plan = look_ahead_->wait_for_plan(step.step, step.layout, step_seconds);
  if (step.step <= last_outdated_step_) discard_look_ahead_plan(step);
  return step;
}

void StepPrefetcher::replace_samples(PlannedStep& step, const std::vector<int64_t>& dropped) {
  for (; !queue_.empty(); queue_.pop_back()) {
    if (queue_.back().error) std::rethrow_exception(queue_.back().error);
    loader_.put_back(std::move(queue_.back().batch));
  }
  const auto is_dropped = [&](const auto& sample) { return std::ranges::find(dropped, sample.index) != dropped.end(); };
  std::erase_if(step.batch.samples, is_dropped);
  std::erase_if(step.batch.remote_samples, is_dropped);
  loader_.refill(step.batch);
  step.layout = make_step_layout(step.batch, get_sample_shapes(step.batch));
  discard_look_ahead_plan(step);
  last_outdated_step_ = last_submitted_step_;
  if (look_ahead_ != nullptr) look_ahead_->mark_desynchronized();
}

engine::StepLayout StepPrefetcher::make_step_layout(data::GlobalBatch& batch,
                                                    const std::vector<data::SampleShape>& shapes) const {
  task_balancer_.assign_tasks(batch.samples);
  return planner::make_step_layout(step_config_, shapes, task_balancer_.make_split_constraint(batch.samples));
}

double StepPrefetcher::fill_prefetch_queue() {
  double wait_seconds = 0;
  const int64_t target_queue_size = 1 + (look_ahead_ != nullptr ? kNumPrefetchedSteps : 0);
  while (std::ssize(queue_) < target_queue_size && next_step_ + std::ssize(queue_) <= last_step_) {
    if (!queue_.empty() && queue_.back().error) break;  // thrown when its turn comes
    PrefetchedStep& prefetched_step = queue_.emplace_back();
    try {
      prefetched_step.batch = loader_.next();
    } catch (...) {
      prefetched_step.error = std::current_exception();
      break;
    }
    wait_seconds += prefetched_step.batch.wait_seconds;
    prefetched_step.shapes = get_sample_shapes(prefetched_step.batch);
    prefetched_step.layout = make_step_layout(prefetched_step.batch, prefetched_step.shapes);
    const int64_t step = next_step_ + std::ssize(queue_) - 1;
    if (look_ahead_ == nullptr || step <= last_submitted_step_) continue;
    look_ahead_->submit(step, prefetched_step.shapes, prefetched_step.layout);
    last_submitted_step_ = step;
  }
  return wait_seconds;
}

namespace {

/// Minimum number of steps between two emptyings of the cache. After each, a step has to allocate
/// its memory again from the driver. Not tuned.
constexpr int64_t kEmptyCacheIntervalSteps = 100;

data::LoaderSettings make_rank_loader_settings(const Config& config, const RunSetup& run, const RankGroup& ranks) {
  data::LoaderSettings settings = make_loader_settings(config);
  settings.shard = ranks.make_loader_shard();
  settings.earlier_version_ignored_keys = run.earlier_version_ignored_keys;
  if (run.host_plan) settings.prefetch_bytes = run.host_plan->prefetch_bytes();
  return settings;
}

std::unique_ptr<LookAheadClient> make_look_ahead_client(const Config& config, const RunSetup& run, at::Device device,
                                                        const StepRunner::EventHandler& on_event) {
  if (!run.plan || !config.memory.look_ahead) return nullptr;
  return std::make_unique<LookAheadClient>(
      run.plan->make_look_ahead_settings(), device,
      [on_event](report::EventKind kind, const std::string& message) { on_event(kind, message, {}); });
}

}  // namespace

StepRunner::StepRunner(const Config& config, RunSetup& run, at::Device device, const RankGroup& ranks,
                       EventHandler on_event)
    : config_(config),
      run_(run),
      device_(device),
      consensus_(ranks.consensus()),
      on_event_(std::move(on_event)),
      loader_(*run.records, *run.processor, *run.order, make_rank_loader_settings(config, run, ranks), run.state.cursor,
              run.ledger),
      look_ahead_(make_look_ahead_client(config, run, device, on_event_)),
      prefetcher_(loader_, run.step_config, *run.task_balancer, look_ahead_.get(), run.state.step + 1, run.total_steps),
      oom_guard_(*run.training, device, consensus_, [this](const std::string& reason, const engine::StepLayout& next) {
        on_out_of_memory(reason, next);
      }) {}

CompletedStep StepRunner::run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                              const LearningRatesFunction& compute_step_learning_rates) {
  if (!step.plan.fits) warn_about_oversized_step(step);
  if (step.plan.empty_cache_at_start) memory::empty_cache(device_);
  memory::reset_peak_memory_stats(device_);
  const auto allocation_limit = run_.host_plan ? run_.host_plan->make_training_allocation_limit() : nullptr;
  for (;;) {
    try {
      CompletedStep completed_step =
          oom_guard_.step(objective, step.batch.samples, step.plan.layout, seed, compute_step_learning_rates);
      completed_step.memory = memory::get_device_memory_stats(device_);
      return completed_step;
    } catch (const OversizedSampleError& error) {
      drop_sample(step, error);
    }
  }
}

void StepRunner::on_step_end(const PlannedStep& step, const CompletedStep& completed_step) {
  if (look_ahead_)
    look_ahead_->compare_with_measurement(step.step, step.plan, completed_step.memory,
                                          completed_step.num_failed_attempts == 0);
  empty_fragmented_cache(step.step, completed_step.memory);
}

void StepRunner::release_device_memory() {
  if (device_.is_cpu()) return;
  memory::empty_cache(device_);
  if (look_ahead_) look_ahead_->mark_desynchronized();
}

/// Raises an event: the look-ahead found no split that fits. The step is tried with the layout of
/// minimum memory, since the look-ahead's limit is lower than the memory of the GPU.
void StepRunner::warn_about_oversized_step(const PlannedStep& step) const {
  std::vector<std::string> ids;
  if (step.plan.oversized_sample_index) {
    ids.push_back(step.batch.samples.at(static_cast<size_t>(*step.plan.oversized_sample_index)).id);
  }
  on_event_(
      report::EventKind::kLookAhead,
      fmt::format("step {}: {} is not expected to fit within the plan's limit, even alone with full recomputation; "
                  "the step is tried after the allocator's cache is emptied",
                  step.step, ids.empty() ? "a sample" : "sample " + ids.front()),
      ids);
}

/// Drops a sample that does not fit, or throws UserError (kDoesNotFit), as data.on_bad_sample says.
/// All ranks do the same, because they have the same sample order.
void StepRunner::drop_sample(PlannedStep& step, const OversizedSampleError& error) {
  constexpr const char* kDropReason = "does not fit into memory";
  std::vector<int64_t> indices;
  if (error.position()) indices.push_back(step.batch.samples.at(static_cast<size_t>(*error.position())).index);
  const auto dropped = consensus_.union_over_ranks(indices);
  for (const int64_t index : dropped) {
    const std::string id = run_.records->at_without_media_bytes(index).id;
    const std::string message =
        fmt::format("sample {}: does not fit into {}, even alone and with everything recomputed ({})", id,
                    memory::to_string(error.memory_kind()), error.what());
    if (config_.data.on_bad_sample == data::BadSamplePolicy::kFail) {
      run_.ledger.mark_failed(index, id, kDropReason, message);
      throw UserError(
          ExitCode::kDoesNotFit,
          message + fmt::format("; shrink it ({}, {}), remove it, or drop such samples: {}=skip",
                                keys::data::kImageMaxPixels, keys::data::kMaxLength, keys::data::kOnBadSample));
    }
    run_.ledger.mark_dropped(index, id, kDropReason, message);
    on_event_(report::EventKind::kAnomaly, message + "; it is dropped, and the next sample in the order replaces it",
              {id});
  }
  if (run_.ledger.count(data::SampleStatus::kDropped) == run_.ledger.num_samples()) {
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("step {}: none of the samples fits into device memory; shrink them ({}, {})", step.step,
                                keys::data::kImageMaxPixels, keys::data::kMaxLength));
  }
  prefetcher_.replace_samples(step, dropped);
}

void StepRunner::on_out_of_memory(const std::string& reason, const engine::StepLayout& next) {
  on_event_(report::EventKind::kOomSplit,
            fmt::format("step {}: out of memory ({}); the step is retried in {} micro-batches", run_.state.step + 1,
                        reason, next.split.num_micro_batches()),
            {});
  if (look_ahead_) look_ahead_->increase_margin();
}

/// Empties the cache if a large share of the reserved memory was not allocated even at the peak,
/// which means that the cache is fragmented.
void StepRunner::empty_fragmented_cache(int64_t step, const memory::DeviceMemoryStats& memory) {
  const auto reserved_bytes = static_cast<double>(memory.reserved_peak_bytes);
  const auto unused_bytes = static_cast<double>(memory.reserved_peak_bytes - memory.allocated_peak_bytes);
  if (unused_bytes <= config_.memory.empty_cache_threshold * reserved_bytes) return;
  if (step < next_cache_emptying_step_) return;
  next_cache_emptying_step_ = step + kEmptyCacheIntervalSteps;
  on_event_(
      report::EventKind::kCacheEmptied,
      fmt::format("step {}: GPU memory is fragmented ({:.0f} % of the reserved memory was unused at the peak); the "
                  "allocator's cache is emptied",
                  step, 100 * unused_bytes / reserved_bytes),
      {});
  if (look_ahead_) {
    look_ahead_->request_cache_release();
  } else {
    memory::empty_cache(device_);
  }
}

}  // namespace vlmtrain::train

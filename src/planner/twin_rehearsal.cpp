#include "planner/twin_rehearsal.h"

#include <ctime>

#include "vlmtrain/engine/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

namespace {

double read_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// The allocator is set before anything is allocated.
at::Device configure_segments(at::Device device, const StepConfig& step_config) {
  memory::set_expandable_segments(step_config.expandable_segments);
  return device;
}

}  // namespace

LookAheadDryRun::LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device)
    : device_(configure_segments(device, step_config)), run_(job, device) {
  memory::release_unused(device_);
}

MemoryForecast LookAheadDryRun::dry_run(const LookAheadStep& step) {
  const double start_seconds = read_cpu_seconds();
  memory::limit_reserved_bytes(device_, step.limit_bytes);
  const models::RecomputeBlocks all_blocks{run_.model().vision_blocks(), run_.model().language_blocks()};
  MemoryForecast forecast;
  forecast.step = step.step;
  forecast.layout = step.layout;
  forecast.empty_cache_first = step.empty_cache_first;
  // What is reserved already would be used whatever the limit.
  if (memory::device_memory(device_).reserved_bytes > step.limit_bytes) forecast.empty_cache_first = true;
  bool completed = run_attempt(step, forecast);
  // Where the allocator has to empty its cache in the middle of a step, a real card stalls; and the run, whose own
  // limit no margin lowers, would not do the same. So the cache is emptied before the step, or the step takes less.
  // The allocator takes 20 MiB at a time, and may be that much above its limit when it is done.
  const auto is_within_limit = [&] { return completed && forecast.peaks.reserved_bytes <= step.limit_bytes; };
  const auto fits_without_retries = [&] { return is_within_limit() && num_retries_ == 0; };
  if (!fits_without_retries() && !forecast.empty_cache_first) {
    forecast.empty_cache_first = true;
    completed = run_attempt(step, forecast);
  }
  while (!fits_without_retries()) {
    auto smaller_layout = engine::disable_copy_ahead(forecast.layout);
    if (!smaller_layout) {
      smaller_layout =
          engine::subdivide_micro_batches(forecast.layout, failed_micro_batch_, engine::SubdivisionMode::kFailedOnly);
    }
    if (!smaller_layout) smaller_layout = engine::minimize_memory(forecast.layout, all_blocks);
    if (!smaller_layout) break;
    forecast.layout = *smaller_layout;
    completed = run_attempt(step, forecast);
  }
  forecast.fits = is_within_limit();
  forecast.completed = completed;
  forecast.failed_micro_batch = failed_micro_batch_;
  forecast.cpu_seconds = read_cpu_seconds() - start_seconds;
  return forecast;
}

bool LookAheadDryRun::run_attempt(const LookAheadStep& step, MemoryForecast& forecast) {
  if (forecast.empty_cache_first) memory::release_unused(device_);
  ++forecast.attempts;
  memory::reset_peaks(device_);
  const int64_t initial_retries = memory::allocation_retries(device_);
  bool fits = true;
  failed_micro_batch_ = -1;
  try {
    run_.step(step.samples, forecast.layout);
  } catch (const engine::StepOutOfMemory& error) {
    failed_micro_batch_ = error.micro_batch();
    run_.drop_gradients();
    fits = false;
  }
  const auto memory = memory::device_memory(device_);
  forecast.peaks = {memory.allocated_peak_bytes, memory.reserved_peak_bytes};
  num_retries_ = memory::allocation_retries(device_) - initial_retries;
  return fits;
}

}  // namespace vlmtrain::planner

#include "planner/twin_rehearsal.h"

#include <ctime>

#include "vlmtrain/engine/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

namespace {

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// The allocator is set before anything is allocated.
at::Device with_segments(at::Device device, const Choices& choices) {
  memory::set_expandable_segments(choices.expandable_segments);
  return device;
}

}  // namespace

TwinRehearsal::TwinRehearsal(const Job& job, const Choices& choices, at::Device device)
    : device_(with_segments(device, choices)), run_(job, device) {
  memory::release_unused(device_);
}

Foresight TwinRehearsal::rehearse(const TwinStep& step) {
  const double cpu_start = cpu_seconds();
  memory::limit_reserved_bytes(device_, step.limit_bytes);
  const models::RecomputeBlocks all_blocks{run_.model().vision_blocks(), run_.model().language_blocks()};
  Foresight found;
  found.step = step.step;
  found.layout = step.layout;
  found.release_first = step.release_first;
  // What is reserved already would be used whatever the limit.
  if (memory::device_memory(device_).reserved_bytes > step.limit_bytes) found.release_first = true;
  bool done = attempt(step, found);
  // Where the allocator has to empty its cache in the middle of a step, a real card stalls; and the run, whose own
  // limit no margin lowers, would not do the same. So the cache is emptied before the step, or the step takes less.
  // The allocator takes 20 MiB at a time, and may be that much above its limit when it is done.
  const auto is_within = [&] { return done && found.peaks.reserved_bytes <= step.limit_bytes; };
  const auto is_smooth = [&] { return is_within() && retries_ == 0; };
  if (!is_smooth() && !found.release_first) {
    found.release_first = true;
    done = attempt(step, found);
  }
  while (!is_smooth()) {
    auto smaller = engine::with_no_copies_ahead(found.layout);
    if (!smaller) {
      smaller = engine::with_smaller_micro_batches(found.layout, failed_micro_batch_, engine::Division::kOnlyThat);
    }
    if (!smaller) smaller = engine::with_least_memory(found.layout, all_blocks);
    if (!smaller) break;
    found.layout = *smaller;
    done = attempt(step, found);
  }
  found.fits = is_within();
  found.done = done;
  found.failed_micro_batch = failed_micro_batch_;
  found.cpu_seconds = cpu_seconds() - cpu_start;
  return found;
}

bool TwinRehearsal::attempt(const TwinStep& step, Foresight& found) {
  if (found.release_first) memory::release_unused(device_);
  ++found.attempts;
  memory::reset_peaks(device_);
  const int64_t retries_before = memory::allocation_retries(device_);
  bool fits = true;
  failed_micro_batch_ = -1;
  try {
    run_.step(step.samples, found.layout);
  } catch (const engine::StepOutOfMemory& error) {
    failed_micro_batch_ = error.micro_batch();
    run_.drop_gradients();
    fits = false;
  }
  const auto memory = memory::device_memory(device_);
  found.peaks = {memory.allocated_peak_bytes, memory.reserved_peak_bytes};
  retries_ = memory::allocation_retries(device_) - retries_before;
  return fits;
}

}  // namespace vlmtrain::planner

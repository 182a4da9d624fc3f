#include "vgpu/runtime/copy_races.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

void CopyRaceDetector::merge(VectorClock& clock, const VectorClock& other) {
  for (const auto& [stream, time] : other) {
    uint64_t& current = clock[stream];
    current = std::max(current, time);
  }
}

/// Returns the new work, which is after all that the host has waited for.
CopyRaceDetector::Work CopyRaceDetector::add_work(cudaStream_t stream) {
  VectorClock& clock = clocks_[stream];
  merge(clock, host_clock_);
  return {.stream = stream, .time = ++clock[stream]};
}

/// Returns whether the next work of the stream is after `work`.
bool CopyRaceDetector::follows(cudaStream_t stream, const Work& work) {
  if (stream == work.stream || host_clock_[work.stream] >= work.time) return true;
  return clocks_[stream][work.stream] >= work.time;
}

void CopyRaceDetector::report(std::string_view race, uintptr_t first, uint64_t bytes) {
  ++global_counters().num_copy_races;
  print_stderr_line(
      {"race of a copy: ", race, " of ", std::to_string(bytes), " bytes at address ", std::to_string(first)});
}

template <class Range, class Visit>
void CopyRaceDetector::visit_overlaps(std::map<uintptr_t, Range>& ranges, uintptr_t first, uint64_t bytes,
                                      const Visit& visit) {
  auto it = ranges.upper_bound(first);
  if (it != ranges.begin() && std::prev(it)->first + std::prev(it)->second.bytes > first) --it;
  while (it != ranges.end() && it->first < first + bytes) {
    const bool is_removed = visit(it->second);
    it = is_removed ? ranges.erase(it) : std::next(it);
  }
}

void CopyRaceDetector::record_copy(const void* to, const void* from, uint64_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  visit_overlaps(copies_in_, source, bytes, [&](const Copy& copy) {
    if (!follows(stream, copy.work)) report("early read", source, bytes);
    return false;
  });
  visit_overlaps(copies_out_, first, bytes, [&](const Copy& copy) {
    if (!follows(stream, copy.work)) report("early reuse", first, bytes);
    return true;
  });
  visit_overlaps(uses_, first, bytes, [&](const Use& use) {
    if (use.is_active) {
      report("early overwrite", first, bytes);
    } else if (!follows(stream, use.last_work)) {
      report("early reuse", first, bytes);
    }
    return false;
  });
  const auto remove = [](const Copy&) { return true; };
  visit_overlaps(copies_in_, first, bytes, remove);
  visit_overlaps(copies_out_, source, bytes, remove);
  const Work work = add_work(stream);
  if (to != nullptr) copies_in_[first] = {.bytes = bytes, .work = work};
  if (from != nullptr) copies_out_[source] = {.bytes = bytes, .work = work};
}

void CopyRaceDetector::record_event(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  event_clocks_[event] = clocks_[stream];
}

void CopyRaceDetector::record_wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  if (const auto it = event_clocks_.find(event); it != event_clocks_.end()) merge(clocks_[stream], it->second);
}

void CopyRaceDetector::remove(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  event_clocks_.erase(event);
}

void CopyRaceDetector::synchronize(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  if (const auto it = event_clocks_.find(event); it != event_clocks_.end()) merge(host_clock_, it->second);
}

void CopyRaceDetector::synchronize(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  merge(host_clock_, clocks_[stream]);
}

void CopyRaceDetector::synchronize_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, clock] : clocks_) merge(host_clock_, clock);
}

void CopyRaceDetector::begin_use(const void* first, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(first);
  visit_overlaps(copies_in_, address, bytes, [&](const Copy& copy) {
    if (!follows(nullptr, copy.work)) report("early read", address, bytes);
    return false;
  });
  visit_overlaps(copies_out_, address, bytes, [&](const Copy& copy) {
    if (!follows(nullptr, copy.work)) report("early reuse", address, bytes);
    return false;
  });
  visit_overlaps(uses_, address, bytes, [](const Use& use) { return !use.is_active; });
  uses_[address] = {.bytes = bytes, .is_active = true, .last_work = {}};
}

void CopyRaceDetector::end_use(const void* first) {
  const std::lock_guard lock(mutex_);
  const auto it = uses_.find(reinterpret_cast<uintptr_t>(first));
  if (it == uses_.end()) return;
  it->second.is_active = false;
  it->second.last_work = add_work(nullptr);
}

CopyRaceDetector& copy_race_detector() {
  return get_leaky_singleton<CopyRaceDetector>();
}

}  // namespace vlmtrain::vgpu

#include "vlmtrain/memory/allocation_trace.h"

#include <c10/core/Allocator.h>

#include <mutex>

namespace vlmtrain::memory {

/// The allocator calls it also on autograd threads, which inherit the debug info of the thread that
/// started the backward pass.
class AllocationTrace::Listener : public c10::MemoryReportingInfoBase {
 public:
  explicit Listener(c10::Device device) : device_(device) {}

  void reportMemoryUsage(void* address, int64_t bytes, size_t /*allocated*/, size_t reserved,
                         c10::Device device) override {
    if (device != device_) return;
    const MemoryTag tag = current_memory_tag();
    const bool backward = is_in_backward();
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      live_[address] = events_.size();
    } else if (live_.erase(address) == 0) {
      return;  // allocated before the trace began
    }
    events_.push_back({address, bytes, tag, backward, static_cast<int64_t>(reserved)});
  }

  bool memoryProfilingEnabled() const override { return true; }

  void assign_workspaces(size_t first_event) {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, event] : live_) {
      MemoryTag& tag = events_[event].tag;
      if (event >= first_event && tag.component != Component::kGradients) tag = {Component::kWorkspace, -1};
    }
  }

  const std::vector<AllocationEvent>& events() const { return events_; }

 private:
  c10::Device device_;
  std::mutex mutex_;
  std::vector<AllocationEvent> events_;
  std::unordered_map<const void*, size_t> live_;  // address → index of its allocation in events_
};

AllocationTrace::AllocationTrace(c10::Device device)
    : listener_(std::make_shared<Listener>(device)), guard_(c10::DebugInfoKind::PROFILER_STATE, listener_) {}

AllocationTrace::~AllocationTrace() = default;

const std::vector<AllocationEvent>& AllocationTrace::events() const {
  return listener_->events();
}

void AllocationTrace::assign_workspaces(size_t first_event) {
  listener_->assign_workspaces(first_event);
}

void AllocationReplay::apply(const AllocationEvent& event) {
  if (event.bytes > 0) owners_[event.address] = event.tag.component;
  by_component_[static_cast<size_t>(owners_.at(event.address))] += event.bytes;
}

Peak find_peak(const std::vector<AllocationEvent>& events, size_t first) {
  Peak peak;
  int64_t allocated = 0;
  AllocationReplay replay;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    replay.apply(event);
    allocated += event.bytes;
    if (i >= first && allocated > peak.allocated_bytes) {
      peak = {i, allocated, replay.by_component(), event.tag, event.backward};
    }
  }
  return peak;
}

}  // namespace vlmtrain::memory

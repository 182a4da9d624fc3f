#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::memory {

/// Bytes by Component.
using ComponentBytes = std::array<int64_t, kNumComponents>;

/// One event of PyTorch's caching allocator: an allocation (`bytes` > 0) or a free (`bytes` < 0), of whole blocks as
/// the allocator counts them.
struct AllocationEvent {
  const void* address = nullptr;
  int64_t bytes = 0;
  MemoryTag tag;
  bool backward = false;   ///< made in a backward pass
  int64_t reserved_bytes;  ///< by the allocator, after the event
};

/// Every allocation on a device by the calling thread and of the backward passes that it starts, while it lives. It
/// listens where PyTorch's profiler would (c10::MemoryReportingInfoBase), so it works with any device; the profiler
/// cannot run meanwhile. One at a time in a process. The tensors that live when it begins are unknown to it.
class AllocationTrace {
 public:
  explicit AllocationTrace(c10::Device device);
  ~AllocationTrace();
  AllocationTrace(const AllocationTrace&) = delete;
  AllocationTrace& operator=(const AllocationTrace&) = delete;

  const std::vector<AllocationEvent>& events() const;

  /// What was allocated since `first_event` and still lives, apart from gradients, is a library's workspace: a step
  /// keeps nothing else.
  void assign_workspaces(size_t first_event);

 private:
  class Listener;
  MemoryTagRecorder tag_recorder_;
  std::shared_ptr<Listener> listener_;
  c10::DebugInfoGuard guard_;
};

/// What is allocated as a trace goes on.
class AllocationReplay {
 public:
  void apply(const AllocationEvent& event);

  const ComponentBytes& by_component() const { return by_component_; }

 private:
  ComponentBytes by_component_{};
  std::unordered_map<const void*, Component> owners_;  // of what lives, or lived last, at an address
};

/// The moment in a trace at which the most was allocated.
struct Peak {
  size_t event = 0;  ///< place in the trace
  int64_t allocated_bytes = 0;
  ComponentBytes by_component{};  ///< sums to allocated_bytes
  MemoryTag tag;                  ///< where the step was
  bool backward = false;
};

/// The peak of events[first, end), counting what events before `first` left allocated. Of equal ones the first.
Peak find_peak(const std::vector<AllocationEvent>& events, size_t first = 0);

}  // namespace vlmtrain::memory

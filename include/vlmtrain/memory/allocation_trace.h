#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::memory {

/// A scope that records the tag under which each autograd node is created. REQUIRES: one instance
/// at a time per process.
class MemoryTagRecorder {
 public:
  MemoryTagRecorder();
  ~MemoryTagRecorder();
  MemoryTagRecorder(const MemoryTagRecorder&) = delete;
  MemoryTagRecorder& operator=(const MemoryTagRecorder&) = delete;
};

/// An event of PyTorch's caching allocator: an allocation (`bytes` > 0) or a free (`bytes` < 0), in
/// whole blocks as the allocator counts them.
struct AllocationEvent {
  const void* address = nullptr;
  int64_t bytes = 0;
  MemoryTag tag;
  bool is_backward = false;  ///< happened in a backward pass
  int64_t reserved_bytes;    ///< by the allocator, after the event
};

/// A recording of the allocations on a device by the calling thread and by the backward passes that
/// it starts. Uses the hook of PyTorch's profiler (c10::MemoryReportingInfoBase), so it works with
/// any device, and the profiler cannot run at the same time. Frees of memory that was allocated
/// before the trace began are ignored.
///
/// REQUIRES: one instance at a time per process.
class AllocationTrace {
 public:
  /// Begins the recording. Ends with this object.
  explicit AllocationTrace(c10::Device device);
  ~AllocationTrace();
  AllocationTrace(const AllocationTrace&) = delete;
  AllocationTrace& operator=(const AllocationTrace&) = delete;

  /// Returns the events so far, in order. REQUIRES: no backward pass runs.
  const std::vector<AllocationEvent>& events() const;

  /// Tags all allocations since `first_event` that are still live, except gradients, as
  /// Component::kWorkspace. Call it after a step, which leaves only workspaces of libraries and
  /// gradients allocated.
  void tag_workspaces(size_t first_event);

 private:
  class Listener;
  MemoryTagRecorder tag_recorder_;
  std::shared_ptr<Listener> listener_;
  c10::DebugInfoGuard debug_info_guard_;
};

/// The allocated bytes by component while the events of a trace are applied in order.
class AllocationReplay {
 public:
  /// REQUIRES: the allocation of each freed address was applied before.
  void apply_event(const AllocationEvent& event);

  const ComponentBytes& bytes_by_component() const { return bytes_by_component_; }

 private:
  ComponentBytes bytes_by_component_{};
  std::unordered_map<const void*, Component> component_by_address_;  // of the latest allocation at each address
};

/// Returns the first maximum of the allocated bytes at events `first` and later. Memory that
/// earlier events left allocated counts. Returns a default MemoryPeak if nothing is allocated.
MemoryPeak find_memory_peak(const std::vector<AllocationEvent>& events, size_t first = 0);

}  // namespace vlmtrain::memory

#include "vlmtrain/memory/allocation_trace.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace vlmtrain::memory {

namespace {

thread_local MemoryTag thread_tag;

/// The tag of the nodes that a thread creates from a sequence number on.
struct TagBoundary {
  uint64_t sequence_number;
  MemoryTag tag;
};

/// Tags by autograd node. A node is identified by its thread and that thread's sequence number.
class NodeTags {
 public:
  void record_tag(MemoryTag tag) {
    const std::lock_guard lock(mutex_);
    auto& tag_boundaries = boundaries_by_thread_[at::RecordFunction::currentThreadId()];
    tag_boundaries.push_back({at::sequence_number::peek(), tag});
  }

  MemoryTag find_tag(const torch::autograd::Node& node) {
    const std::lock_guard lock(mutex_);
    const auto entry = boundaries_by_thread_.find(node.thread_id());
    if (entry == boundaries_by_thread_.end()) return {};
    const auto& tag_boundaries = entry->second;
    const auto next_boundary = std::upper_bound(
        tag_boundaries.begin(), tag_boundaries.end(), node.sequence_nr(),
        [](uint64_t number, const TagBoundary& boundary) { return number < boundary.sequence_number; });
    return next_boundary == tag_boundaries.begin() ? MemoryTag{} : std::prev(next_boundary)->tag;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    boundaries_by_thread_.clear();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<TagBoundary>> boundaries_by_thread_;
};

NodeTags& get_node_tags() {
  static NodeTags tags;
  return tags;
}

std::atomic<bool> is_recording{false};

void set_thread_tag(MemoryTag tag) {
  thread_tag = tag;
  if (is_recording.load(std::memory_order_relaxed)) get_node_tags().record_tag(tag);
}

}  // namespace

std::string_view to_string(Component component) {
  switch (component) {
    case Component::kOther:
      return "other";
    case Component::kWeights:
      return "weights";
    case Component::kGradients:
      return "gradients";
    case Component::kOptimizer:
      return "optimizer";
    case Component::kInput:
      return "input";
    case Component::kVision:
      return "vision activations";
    case Component::kLanguage:
      return "language activations";
    case Component::kMasks:
      return "mask activations";
    case Component::kLoss:
      return "loss";
    case Component::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

ComponentScope::ComponentScope(Component component) : outer_tag_(thread_tag) {
  set_thread_tag({component, -1});
}

ComponentScope::~ComponentScope() {
  set_thread_tag(outer_tag_);
}

BlockScope::BlockScope(Component component, int64_t block) : outer_tag_(thread_tag) {
  set_thread_tag({component, static_cast<int>(block)});
}

BlockScope::~BlockScope() {
  set_thread_tag(outer_tag_);
}

bool is_in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

MemoryTag get_current_memory_tag() {
  if (thread_tag != MemoryTag{}) return thread_tag;
  const auto node = torch::autograd::get_current_node();
  return node == nullptr ? MemoryTag{} : get_node_tags().find_tag(*node);
}

MemoryTagRecorder::MemoryTagRecorder() {
  get_node_tags().clear();
  is_recording = true;
}

MemoryTagRecorder::~MemoryTagRecorder() {
  is_recording = false;
  get_node_tags().clear();
}

/// The allocator also calls the listener on autograd threads, which inherit the debug info of the
/// thread that started the backward pass.
class AllocationTrace::Listener : public c10::MemoryReportingInfoBase {
 public:
  explicit Listener(c10::Device device) : device_(device) {}

  void reportMemoryUsage(void* address, int64_t bytes, size_t /*allocated*/, size_t reserved,
                         c10::Device device) override {
    if (device != device_) return;
    const MemoryTag tag = get_current_memory_tag();
    const bool backward = is_in_backward();
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      live_allocation_indices_[address] = events_.size();
    } else if (live_allocation_indices_.erase(address) == 0) {
      return;  // allocated before the trace began
    }
    events_.push_back({address, bytes, tag, backward, static_cast<int64_t>(reserved)});
  }

  bool memoryProfilingEnabled() const override { return true; }

  void tag_workspaces(size_t first_event) {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, event] : live_allocation_indices_) {
      MemoryTag& tag = events_[event].tag;
      if (event >= first_event && tag.component != Component::kGradients) tag = {Component::kWorkspace, -1};
    }
  }

  const std::vector<AllocationEvent>& events() const { return events_; }

 private:
  c10::Device device_;
  std::mutex mutex_;
  std::vector<AllocationEvent> events_;
  std::unordered_map<const void*, size_t> live_allocation_indices_;  // address → index of its allocation in events_
};

AllocationTrace::AllocationTrace(c10::Device device)
    : listener_(std::make_shared<Listener>(device)), debug_info_guard_(c10::DebugInfoKind::PROFILER_STATE, listener_) {}

AllocationTrace::~AllocationTrace() = default;

const std::vector<AllocationEvent>& AllocationTrace::events() const {
  return listener_->events();
}

void AllocationTrace::tag_workspaces(size_t first_event) {
  listener_->tag_workspaces(first_event);
}

void AllocationReplay::apply_event(const AllocationEvent& event) {
  if (event.bytes > 0) component_by_address_[event.address] = event.tag.component;
  bytes_by_component_[static_cast<size_t>(component_by_address_.at(event.address))] += event.bytes;
}

MemoryPeak find_memory_peak(const std::vector<AllocationEvent>& events, size_t first) {
  MemoryPeak peak;
  int64_t allocated_bytes = 0;
  AllocationReplay replay;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    replay.apply_event(event);
    allocated_bytes += event.bytes;
    if (i >= first && allocated_bytes > peak.allocated_bytes) {
      peak = {i, allocated_bytes, replay.bytes_by_component(), event.tag, event.is_backward};
    }
  }
  return peak;
}

}  // namespace vlmtrain::memory

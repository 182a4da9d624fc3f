#include "vlmtrain/memory/place.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace vlmtrain::memory {

namespace {

thread_local Place place_of_thread;

/// The nodes that a thread made from this sequence number on belong to `place`.
struct Boundary {
  uint64_t sequence_number;
  Place place;
};

/// A node is known by the thread that made it and that thread's running number.
class NodePlaces {
 public:
  void note(Place place) {
    const std::lock_guard lock(mutex_);
    auto& boundaries = by_thread_[at::RecordFunction::currentThreadId()];
    boundaries.push_back({at::sequence_number::peek(), place});
  }

  Place find(const torch::autograd::Node& node) {
    const std::lock_guard lock(mutex_);
    const auto thread = by_thread_.find(node.thread_id());
    if (thread == by_thread_.end()) return {};
    const auto& boundaries = thread->second;
    const auto after =
        std::upper_bound(boundaries.begin(), boundaries.end(), node.sequence_nr(),
                         [](uint64_t number, const Boundary& boundary) { return number < boundary.sequence_number; });
    return after == boundaries.begin() ? Place{} : std::prev(after)->place;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    by_thread_.clear();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<Boundary>> by_thread_;
};

NodePlaces& node_places() {
  static NodePlaces places;
  return places;
}

std::atomic<bool> recording{false};

void move_to(Place place) {
  place_of_thread = place;
  if (recording.load(std::memory_order_relaxed)) node_places().note(place);
}

}  // namespace

std::string_view name_of(Component component) {
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

InComponent::InComponent(Component component) : outer_(place_of_thread) {
  move_to({component, -1});
}

InComponent::~InComponent() {
  move_to(outer_);
}

InBlock::InBlock(Component component, int64_t block) : outer_(place_of_thread) {
  move_to({component, static_cast<int>(block)});
}

InBlock::~InBlock() {
  move_to(outer_);
}

bool in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

Place current_place() {
  if (place_of_thread != Place{}) return place_of_thread;
  const auto node = torch::autograd::get_current_node();
  return node == nullptr ? Place{} : node_places().find(*node);
}

PlaceRecording::PlaceRecording() {
  forget();
  recording = true;
}

PlaceRecording::~PlaceRecording() {
  recording = false;
  forget();
}

void PlaceRecording::forget() {
  node_places().forget();
}

}  // namespace vlmtrain::memory

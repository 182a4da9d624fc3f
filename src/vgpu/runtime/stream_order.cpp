#include "vgpu/runtime/stream_order.h"

#include <algorithm>

#include "vgpu/core/immortal.h"

namespace vlmtrain::vgpu {

void StreamOrder::record(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  before_events_[event] = launches_before(stream);
}

void StreamOrder::wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = before_events_.find(event);
  if (stream == nullptr || found == before_events_.end()) return;
  uint64_t& before = before_streams_[stream];
  before = std::max(before, found->second);
}

void StreamOrder::forget(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  before_events_.erase(event);
}

bool StreamOrder::is_behind_all(cudaStream_t stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return launches_before(stream) == launches_;
}

uint64_t StreamOrder::launches_before(cudaStream_t stream) const {
  if (stream == nullptr) return launches_;
  const auto found = before_streams_.find(stream);
  return found == before_streams_.end() ? 0 : found->second;
}

StreamOrder& stream_order() {
  return immortal<StreamOrder>();
}

}  // namespace vlmtrain::vgpu

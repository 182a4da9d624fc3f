#include "vgpu/runtime/stream_order.h"

#include <algorithm>

#include "vgpu/core/immortal.h"

namespace vlmtrain::vgpu {

void StreamOrder::record(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launches_before_event_[event] = count_launches_before(stream);
}

void StreamOrder::wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = launches_before_event_.find(event);
  if (stream == nullptr || it == launches_before_event_.end()) return;
  uint64_t& count = launches_before_stream_[stream];
  count = std::max(count, it->second);
}

void StreamOrder::remove(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launches_before_event_.erase(event);
}

bool StreamOrder::is_after_all_launches(cudaStream_t stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_launches_before(stream) == launches_;
}

uint64_t StreamOrder::count_launches_before(cudaStream_t stream) const {
  if (stream == nullptr) return launches_;
  const auto it = launches_before_stream_.find(stream);
  return it == launches_before_stream_.end() ? 0 : it->second;
}

StreamOrder& stream_order() {
  return leaky_singleton<StreamOrder>();
}

}  // namespace vlmtrain::vgpu

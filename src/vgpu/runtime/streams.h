#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace vlmtrain::vgpu {

/// The time that kernels take, all the same (VLMTRAIN_VGPU_LAUNCH_MICROSECONDS), one after another whatever the stream.
/// Thread-safe. Not set: none.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  DeviceClock();

  bool is_enabled() const { return kernel_duration_.count() > 0; }

  /// A kernel is queued.
  void queue_kernel();

  /// When all is done that was queued so far.
  Time completion_time();

  /// Returns once all is done that was queued so far.
  void wait();

 private:
  std::chrono::nanoseconds kernel_duration_{0};
  std::mutex mutex_;
  Time completion_time_{};
};

DeviceClock& device_clock();

/// Which launches of the default stream, the one that LibTorch computes on, come before what a stream is given next:
/// those before the events that it waited for. Thread-safe.
class StreamOrder {
 public:
  void record_launch() { ++launches_; }
  void record(cudaEvent_t event, cudaStream_t stream);
  void wait(cudaStream_t stream, cudaEvent_t event);
  void remove(cudaEvent_t event);

  /// Whether it comes behind all launches so far.
  bool is_after_all_launches(cudaStream_t stream) const;

 private:
  uint64_t count_launches_before(cudaStream_t stream) const;

  std::atomic<uint64_t> launches_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::map<cudaEvent_t, uint64_t> launches_before_event_;
  std::map<cudaStream_t, uint64_t> launches_before_stream_;
};

StreamOrder& stream_order();

}  // namespace vlmtrain::vgpu

#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace vlmtrain::vgpu {

/// A clock by which every kernel takes VLMTRAIN_VGPU_LAUNCH_MICROSECONDS. Kernels run one after another
/// regardless of their streams. Without the variable, kernels take no time. Thread-safe.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  DeviceClock();

  bool is_enabled() const { return kernel_duration_.count() > 0; }

  void queue_kernel();

  /// Returns when the kernels queued so far are complete.
  Time completion_time();

  /// Blocks until the kernels queued so far are complete.
  void wait();

 private:
  std::chrono::nanoseconds kernel_duration_{0};
  std::mutex mutex_;
  Time completion_time_{};
};

/// Returns the clock of this process's virtual GPU.
DeviceClock& device_clock();

/// The order of side streams relative to launches on the default stream, on which LibTorch computes. A
/// stream is ordered after the launches before the events it waited for. Thread-safe.
class StreamOrder {
 public:
  /// Counts a launch on the default stream.
  void record_launch() { ++launches_; }
  void record(cudaEvent_t event, cudaStream_t stream);
  void wait(cudaStream_t stream, cudaEvent_t event);
  void remove(cudaEvent_t event);

  /// Returns whether the stream's next work is ordered after all launches so far.
  bool is_after_all_launches(cudaStream_t stream) const;

 private:
  uint64_t count_ordered_launches(cudaStream_t stream) const;

  std::atomic<uint64_t> launches_{0};
  mutable std::mutex mutex_;  // guards the members below
  std::map<cudaEvent_t, uint64_t> launches_before_event_;
  std::map<cudaStream_t, uint64_t> launches_before_stream_;
};

/// Returns the order of this process's streams.
StreamOrder& stream_order();

}  // namespace vlmtrain::vgpu

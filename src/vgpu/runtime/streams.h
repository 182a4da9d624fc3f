#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace vlmtrain::vgpu {

/// A clock in which every kernel takes VLMTRAIN_VGPU_LAUNCH_MICROSECONDS. Kernels run one after
/// another regardless of their streams. If the variable is not set, kernels take no time.
/// Thread-safe.
class DeviceClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  DeviceClock();

  bool is_enabled() const { return kernel_duration_.count() > 0; }

  /// Adds a kernel to the queue. Its duration begins when the kernels before it are complete.
  void enqueue_kernel();

  /// Returns the time at which the kernels queued so far are complete.
  TimePoint get_completion_time();

  /// Blocks until the kernels queued so far are complete.
  void wait();

 private:
  std::chrono::nanoseconds kernel_duration_{0};
  std::mutex mutex_;
  TimePoint completion_time_{};
};

/// Returns the clock of this process's virtual GPU.
DeviceClock& device_clock();

/// The order of side streams relative to launches on the default stream, on which LibTorch
/// computes. If a stream waits for an event, its later work is ordered after the launches before
/// that event. Thread-safe.
class StreamOrder {
 public:
  /// Counts a launch on the default stream.
  void record_launch() { ++num_launches_; }
  /// Records the event on the stream (cudaEventRecord).
  void record_event(cudaEvent_t event, cudaStream_t stream);
  /// Makes the stream wait for the event (cudaStreamWaitEvent).
  void record_wait(cudaStream_t stream, cudaEvent_t event);
  /// Forgets a destroyed event.
  void remove(cudaEvent_t event);

  /// Returns whether the next work of the stream is ordered after all launches so far.
  bool is_after_all_launches(cudaStream_t stream) const;

 private:
  /// Returns the number of launches that are ordered before the stream's next work. REQUIRES:
  /// mutex_ is held.
  uint64_t count_ordered_launches(cudaStream_t stream) const;

  std::atomic<uint64_t> num_launches_{0};
  mutable std::mutex mutex_;  // guards the members below
  std::map<cudaEvent_t, uint64_t> num_launches_before_event_;
  std::map<cudaStream_t, uint64_t> num_launches_before_stream_;
};

/// Returns the order of this process's streams.
StreamOrder& stream_order();

}  // namespace vlmtrain::vgpu

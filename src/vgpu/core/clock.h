#pragma once

#include <chrono>
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

}  // namespace vlmtrain::vgpu

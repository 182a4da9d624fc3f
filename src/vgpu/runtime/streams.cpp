// Streams and events. Work completes when it is queued, so handles of streams and events are only
// numbers. If kernels take time (DeviceClock), an event records the time at which the work before
// it completes.

#include "vgpu/runtime/streams.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"
#include "vgpu/runtime/copy_races.h"
#include "vgpu/runtime/device.h"

namespace vlmtrain::vgpu {

DeviceClock::DeviceClock() {
  constexpr const char* kLaunchDurationEnvironmentVariable = "VLMTRAIN_VGPU_LAUNCH_MICROSECONDS";
  const char* const value = std::getenv(kLaunchDurationEnvironmentVariable);
  const std::string_view text = value == nullptr ? std::string_view() : std::string_view(value);
  if (text.empty()) return;
  int64_t launch_microseconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), launch_microseconds);
  if (error == std::errc() && end == text.data() + text.size() && launch_microseconds >= 0) {
    kernel_duration_ = std::chrono::microseconds(launch_microseconds);
  } else {
    print_stderr_line(
        {kLaunchDurationEnvironmentVariable, "=", text, " is not a number of microseconds; kernels take no time"});
  }
}

void DeviceClock::enqueue_kernel() {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  completion_time_ = std::max(completion_time_, std::chrono::steady_clock::now()) + kernel_duration_;
}

DeviceClock::TimePoint DeviceClock::get_completion_time() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completion_time_;
}

void DeviceClock::wait() {
  if (is_enabled()) std::this_thread::sleep_until(get_completion_time());
}

DeviceClock& device_clock() {
  return get_leaky_singleton<DeviceClock>();
}

void StreamOrder::record_event(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_launches_before_event_[event] = count_ordered_launches(stream);
}

void StreamOrder::record_wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = num_launches_before_event_.find(event);
  if (stream == nullptr || it == num_launches_before_event_.end()) return;
  uint64_t& count = num_launches_before_stream_[stream];
  count = std::max(count, it->second);
}

void StreamOrder::remove(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_launches_before_event_.erase(event);
}

bool StreamOrder::is_after_all_launches(cudaStream_t stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_ordered_launches(stream) == num_launches_;
}

uint64_t StreamOrder::count_ordered_launches(cudaStream_t stream) const {
  if (stream == nullptr) return num_launches_;
  const auto it = num_launches_before_stream_.find(stream);
  return it == num_launches_before_stream_.end() ? 0 : it->second;
}

StreamOrder& stream_order() {
  return get_leaky_singleton<StreamOrder>();
}

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::copy_race_detector;
using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::DeviceClock;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::operation_trace;
using vlmtrain::vgpu::stream_order;

namespace {

/// Returns a handle that is unique among streams and events.
template <class Handle>
Handle make_unique_handle() {
  static std::atomic<uintptr_t> next{0x1000};
  return reinterpret_cast<Handle>(next.fetch_add(0x10));
}

cudaError_t make_stream(cudaStream_t* stream) {
  *stream = make_unique_handle<cudaStream_t>();
  return cudaSuccess;
}

cudaError_t make_event(cudaEvent_t* event) {
  *event = make_unique_handle<cudaEvent_t>();
  return cudaSuccess;
}

/// The completion times of events. Empty if kernels take no time. Thread-safe.
class EventCompletionTimes {
 public:
  void record(cudaEvent_t event) {
    if (!device_clock().is_enabled()) return;
    const auto completion_time = device_clock().get_completion_time();
    const std::lock_guard<std::mutex> lock(mutex_);
    completion_times_[event] = completion_time;
  }

  void remove(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    completion_times_.erase(event);
  }

  /// Blocks until the event is complete. An event that was not recorded is complete.
  void synchronize(cudaEvent_t event) {
    if (!device_clock().is_enabled()) return;
    DeviceClock::TimePoint completion_time{};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto it = completion_times_.find(event); it != completion_times_.end()) completion_time = it->second;
    }
    std::this_thread::sleep_until(completion_time);
  }

 private:
  std::mutex mutex_;
  std::map<cudaEvent_t, DeviceClock::TimePoint> completion_times_;
};

EventCompletionTimes& event_completion_times() {
  return vlmtrain::vgpu::get_leaky_singleton<EventCompletionTimes>();
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make_stream(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return make_stream(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
  return get_device_status();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ++global_counters().num_stream_waits;
  stream_order().record_wait(stream, event);
  copy_race_detector().record_wait(stream, event);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  copy_race_detector().synchronize(stream);
  ++global_counters().num_stream_synchronizations;
  operation_trace().add({"wait for a stream"});
  device_clock().wait();
  return get_device_status();
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* user_data, unsigned) {
  callback(stream, cudaSuccess, user_data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* user_data) {
  function(user_data);
  return cudaSuccess;
}

// CUDA graphs are not modeled, so no stream is ever capturing. LibTorch queries that before it
// generates random numbers.

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make_event(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  event_completion_times().remove(event);
  stream_order().remove(event);
  copy_race_detector().remove(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event_completion_times().record(event);
  stream_order().record_event(event, stream);
  copy_race_detector().record_event(event, stream);
  return get_device_status();
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  return get_device_status();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++global_counters().num_event_synchronizations;
  operation_trace().add({"wait for an event"});
  event_completion_times().synchronize(event);
  copy_race_detector().synchronize(event);
  return get_device_status();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

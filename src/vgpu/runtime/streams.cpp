// Streams and events. Work is done as soon as it is queued, so a stream and an event are but a number; where kernels
// take time (core/clock.h), an event remembers when its work is done.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

#include "vgpu/core/clock.h"
#include "vgpu/core/count.h"
#include "vgpu/core/immortal.h"
#include "vgpu/core/trace.h"
#include "vgpu/runtime/error.h"
#include "vgpu/runtime/stream_order.h"

using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::DeviceClock;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::stream_order;
using vlmtrain::vgpu::trace;

namespace {

/// A handle that no other stream or event has.
template <class Handle>
Handle make_handle_value() {
  static std::atomic<uintptr_t> next{0x1000};
  return reinterpret_cast<Handle>(next.fetch_add(0x10));
}

cudaError_t make_stream(cudaStream_t* stream) {
  *stream = make_handle_value<cudaStream_t>();
  return cudaSuccess;
}

cudaError_t make_event(cudaEvent_t* event) {
  *event = make_handle_value<cudaEvent_t>();
  return cudaSuccess;
}

/// When the work before each event is done. Empty where kernels take no time.
class RecordedEvents {
 public:
  void record(cudaEvent_t event) {
    if (!device_clock().is_enabled()) return;
    const auto completion_time = device_clock().completion_time();
    const std::lock_guard<std::mutex> lock(mutex_);
    completion_times_[event] = completion_time;
  }

  void remove(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    completion_times_.erase(event);
  }

  void synchronize(cudaEvent_t event) {
    if (!device_clock().is_enabled()) return;
    DeviceClock::Time completion_time{};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto it = completion_times_.find(event); it != completion_times_.end()) completion_time = it->second;
    }
    std::this_thread::sleep_until(completion_time);
  }

 private:
  std::mutex mutex_;
  std::map<cudaEvent_t, DeviceClock::Time> completion_times_;
};

RecordedEvents& recorded_events() {
  return vlmtrain::vgpu::leaky_singleton<RecordedEvents>();
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
  ++global_counters().stream_waits;
  stream_order().wait(stream, event);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++global_counters().stream_synchronizations;
  trace().add({"wait for a stream"});
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

// Nothing is ever captured: CUDA graphs are not modelled, but LibTorch asks before each random number.

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
  recorded_events().remove(event);
  stream_order().remove(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  recorded_events().record(event);
  stream_order().record(event, stream);
  return get_device_status();
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  recorded_events().record(event);
  stream_order().record(event, stream);
  return get_device_status();
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  return get_device_status();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++global_counters().event_synchronizations;
  trace().add({"wait for an event"});
  recorded_events().synchronize(event);
  return get_device_status();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

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

using vlmtrain::vgpu::counts;
using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::DeviceClock;
using vlmtrain::vgpu::state_of_device;
using vlmtrain::vgpu::stream_order;
using vlmtrain::vgpu::trace;

namespace {

/// A handle that no other stream or event has.
template <class Handle>
Handle new_handle() {
  static std::atomic<uintptr_t> next{0x1000};
  return reinterpret_cast<Handle>(next.fetch_add(0x10));
}

cudaError_t new_stream(cudaStream_t* stream) {
  *stream = new_handle<cudaStream_t>();
  return cudaSuccess;
}

cudaError_t new_event(cudaEvent_t* event) {
  *event = new_handle<cudaEvent_t>();
  return cudaSuccess;
}

/// When the work before each event is done. Empty where kernels take no time.
class RecordedEvents {
 public:
  void record(cudaEvent_t event) {
    if (!device_clock().runs()) return;
    const auto done = device_clock().done();
    const std::lock_guard<std::mutex> lock(mutex_);
    done_[event] = done;
  }

  void forget(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.erase(event);
  }

  void wait_for(cudaEvent_t event) {
    if (!device_clock().runs()) return;
    DeviceClock::Time done{};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = done_.find(event); found != done_.end()) done = found->second;
    }
    std::this_thread::sleep_until(done);
  }

 private:
  std::mutex mutex_;
  std::map<cudaEvent_t, DeviceClock::Time> done_;
};

RecordedEvents& recorded_events() {
  return vlmtrain::vgpu::immortal<RecordedEvents>();
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return new_stream(stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return new_stream(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return new_stream(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
  return state_of_device();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ++counts().stream_waits;
  stream_order().wait(stream, event);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++counts().stream_synchronizations;
  trace().add({"wait for a stream"});
  device_clock().wait();
  return state_of_device();
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
  return new_event(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return new_event(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  recorded_events().forget(event);
  stream_order().forget(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  recorded_events().record(event);
  stream_order().record(event, stream);
  return state_of_device();
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  recorded_events().record(event);
  stream_order().record(event, stream);
  return state_of_device();
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  return state_of_device();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++counts().event_synchronizations;
  trace().add({"wait for an event"});
  recorded_events().wait_for(event);
  return state_of_device();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

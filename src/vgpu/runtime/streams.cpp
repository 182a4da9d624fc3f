// Streams and events. Work is done as soon as it is queued, so a stream and an event are but a number.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "vgpu/core/count.h"

using vlmtrain::vgpu::counts;

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
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++counts().stream_synchronizations;
  return cudaSuccess;
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

cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  ++counts().event_synchronizations;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

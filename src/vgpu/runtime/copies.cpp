// Copies and fills. There are no values on the device: what is copied to it is lost, what comes from it is zero.

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "vgpu/core/clock.h"
#include "vgpu/core/count.h"
#include "vgpu/core/device_memory.h"
#include "vgpu/core/trace.h"
#include "vgpu/runtime/error.h"
#include "vgpu/runtime/host_memory.h"
#include "vgpu/runtime/stream_order.h"

using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::pinned_host_memory;
using vlmtrain::vgpu::stream_order;
using vlmtrain::vgpu::trace;

namespace {

/// `rows` rows of `width` bytes, `pitch` bytes apart on each side. The direction is found from the pointers, as
/// cudaMemcpyDefault does.
struct Copy {
  void* to;
  const void* from;
  size_t width;
  size_t rows = 1;
  size_t to_pitch = 0;
  size_t from_pitch = 0;
};

void* target_row(const Copy& copy, size_t index) {
  return static_cast<std::byte*>(copy.to) + index * copy.to_pitch;
}

const void* source_row(const Copy& copy, size_t index) {
  return static_cast<const std::byte*>(copy.from) + index * copy.from_pitch;
}

void perform_copy(const Copy& copy, cudaStream_t stream) {
  const size_t bytes = copy.width * copy.rows;
  if (bytes == 0) return;
  const bool to_device = device_memory().contains(copy.to);
  const bool from_device = device_memory().contains(copy.from);
  if (to_device && from_device) {
    global_counters().device_to_device.add(bytes);
    trace().add({"copy on the device", std::to_string(bytes)});
  } else if (to_device) {
    const bool pinned = pinned_host_memory().is_pinned(copy.from);
    (pinned ? global_counters().host_to_device_pinned : global_counters().host_to_device_pageable).add(bytes);
    if (stream != nullptr) global_counters().side_stream_copies.add(bytes);
    if (!stream_order().is_after_all_launches(stream)) ++global_counters().early_side_stream_copies;
    trace().add({pinned ? "copy from pinned memory" : "copy from pageable memory", std::to_string(bytes)});
  } else if (from_device) {
    const bool pinned = pinned_host_memory().is_pinned(copy.to);
    (pinned ? global_counters().device_to_host_pinned : global_counters().device_to_host_pageable).add(bytes);
    trace().add({pinned ? "copy to pinned memory" : "copy to pageable memory", std::to_string(bytes)});
    for (size_t i = 0; i < copy.rows; ++i) std::memset(target_row(copy, i), 0, copy.width);
  } else {
    for (size_t i = 0; i < copy.rows; ++i) std::memmove(target_row(copy, i), source_row(copy, i), copy.width);
  }
}

cudaError_t fill(void* to, int value, size_t bytes) {
  ++global_counters().fills;
  trace().add({"fill", std::to_string(bytes)});
  if (!device_memory().contains(to)) std::memset(to, value, bytes);
  return get_device_status();
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  ++global_counters().blocking_copies;
  device_clock().wait();
  perform_copy({to, from, bytes}, nullptr);
  return get_device_status();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  perform_copy({to, from, bytes}, stream);
  return get_device_status();
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  perform_copy({to, from, bytes}, stream);
  return get_device_status();
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  perform_copy({to, from, width, height, to_pitch, from_pitch}, stream);
  return get_device_status();
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return fill(to, value, bytes);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return fill(to, value, bytes);
}

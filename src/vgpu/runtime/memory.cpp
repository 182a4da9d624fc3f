// Device memory, pinned host memory, and copies.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"
#include "vgpu/runtime/copy_races.h"
#include "vgpu/runtime/device.h"
#include "vgpu/runtime/streams.h"

namespace vlmtrain::vgpu {

namespace {

/// The set of pinned host memory ranges. Thread-safe.
class PinnedHostMemory {
 public:
  void add(const void* first, size_t bytes, bool is_registered);
  /// Removes the range that begins at `first`. Returns false if there is none.
  bool remove(const void* first);
  /// Returns whether a range contains the address.
  bool is_pinned(const void* pointer) const { return find(pointer).has_value(); }
  /// Returns whether cudaHostRegister() pinned the range that contains the address.
  bool is_registered(const void* pointer) const {
    const auto range = find(pointer);
    return range && range->is_registered;
  }

 private:
  struct Range {
    size_t bytes = 0;
    bool is_registered = false;
  };

  std::optional<Range> find(const void* pointer) const;

  mutable std::mutex mutex_;
  std::map<uintptr_t, Range> pinned_ranges_;  // by first address
};

void PinnedHostMemory::add(const void* first, size_t bytes, bool is_registered) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pinned_ranges_[reinterpret_cast<uintptr_t>(first)] = {.bytes = bytes, .is_registered = is_registered};
}

bool PinnedHostMemory::remove(const void* first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pinned_ranges_.erase(reinterpret_cast<uintptr_t>(first)) > 0;
}

std::optional<PinnedHostMemory::Range> PinnedHostMemory::find(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = pinned_ranges_.upper_bound(address);
  if (next == pinned_ranges_.begin()) return std::nullopt;
  const auto& [first, range] = *std::prev(next);
  return address - first < range.bytes ? std::optional(range) : std::nullopt;
}

/// Returns the ranges of this process.
PinnedHostMemory& pinned_host_memory() {
  return get_leaky_singleton<PinnedHostMemory>();
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::copy_race_detector;
using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::fault_injector;
using vlmtrain::vgpu::FaultPoint;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::operation_trace;
using vlmtrain::vgpu::pinned_host_memory;
using vlmtrain::vgpu::set_last_error;
using vlmtrain::vgpu::stream_order;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (const auto error = get_device_status(); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  const auto address = device_memory().allocate(bytes);
  if (!address) return set_last_error(cudaErrorMemoryAllocation);
  *pointer = reinterpret_cast<void*>(*address);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  const bool is_freed = pointer == nullptr || device_memory().free(reinterpret_cast<uint64_t>(pointer));
  return is_freed ? get_device_status() : set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = device_memory().available_bytes();
  *total_bytes = device_memory().capacity_bytes();
  return get_device_status();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  void* const address = const_cast<void*>(pointer);
  if (device_memory().contains(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = 0;
    attributes->devicePointer = address;
  } else if (pinned_host_memory().is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = 0;
    attributes->devicePointer = attributes->hostPointer = address;
  }
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (fault_injector().consume_scheduled_fault(FaultPoint::kHostAllocation))
    return set_last_error(cudaErrorMemoryAllocation);
  constexpr size_t kPageBytes = 4096;
  *pointer = std::aligned_alloc(kPageBytes, (bytes + kPageBytes) / kPageBytes * kPageBytes);
  if (*pointer == nullptr) return set_last_error(cudaErrorMemoryAllocation);
  ++global_counters().num_host_allocations;
  pinned_host_memory().add(*pointer, bytes, /*is_registered=*/false);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (!pinned_host_memory().remove(pointer)) return set_last_error(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  pinned_host_memory().add(pointer, bytes, /*is_registered=*/true);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  return pinned_host_memory().remove(pointer) ? cudaSuccess : set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  *device_pointer = pointer;
  return cudaSuccess;
}

// Device memory stores no values: copies to it are discarded, and copies from it yield zeros.

namespace {

/// A copy of `rows` rows of `width` bytes. A pitch is the distance of two rows in bytes. The
/// direction follows from the pointers, as with cudaMemcpyDefault.
struct CopyRequest {
  void* to;
  const void* from;
  size_t width;
  size_t rows = 1;
  size_t to_pitch = 0;
  size_t from_pitch = 0;
};

void* get_target_row(const CopyRequest& copy, size_t index) {
  return static_cast<std::byte*>(copy.to) + index * copy.to_pitch;
}

const void* get_source_row(const CopyRequest& copy, size_t index) {
  return static_cast<const std::byte*>(copy.from) + index * copy.from_pitch;
}

void perform_copy(const CopyRequest& copy, cudaStream_t stream) {
  const size_t bytes = copy.width * copy.rows;
  if (bytes == 0) return;
  const bool is_target_on_device = device_memory().contains(copy.to);
  const bool is_source_on_device = device_memory().contains(copy.from);
  if (is_target_on_device && is_source_on_device) {
    global_counters().device_to_device.add(bytes);
    operation_trace().add({"copy on the device", std::to_string(bytes)});
  } else if (is_target_on_device) {
    const bool is_host_memory_pinned = pinned_host_memory().is_pinned(copy.from);
    (is_host_memory_pinned ? global_counters().host_to_device_pinned : global_counters().host_to_device_pageable)
        .add(bytes);
    if (stream != nullptr) global_counters().side_stream_copies.add(bytes);
    if (!stream_order().is_after_all_launches(stream)) ++global_counters().num_early_side_stream_copies;
    copy_race_detector().record_copy(copy.to, is_host_memory_pinned ? copy.from : nullptr, bytes, stream);
    operation_trace().add(
        {is_host_memory_pinned ? "copy from pinned memory" : "copy from pageable memory", std::to_string(bytes)});
  } else if (is_source_on_device) {
    const bool is_host_memory_pinned = pinned_host_memory().is_pinned(copy.to);
    (is_host_memory_pinned ? global_counters().device_to_host_pinned : global_counters().device_to_host_pageable)
        .add(bytes);
    operation_trace().add(
        {is_host_memory_pinned ? "copy to pinned memory" : "copy to pageable memory", std::to_string(bytes)});
    copy_race_detector().record_copy(is_host_memory_pinned ? copy.to : nullptr, copy.from, bytes, stream);
    // Memory that the program mapped itself is address space only (memory::HostArena).
    if (pinned_host_memory().is_registered(copy.to)) return;
    for (size_t i = 0; i < copy.rows; ++i) std::memset(get_target_row(copy, i), 0, copy.width);
  } else {
    for (size_t i = 0; i < copy.rows; ++i) std::memmove(get_target_row(copy, i), get_source_row(copy, i), copy.width);
  }
}

cudaError_t perform_memset(void* to, int value, size_t bytes) {
  ++global_counters().num_memsets;
  operation_trace().add({"fill", std::to_string(bytes)});
  if (!device_memory().contains(to)) std::memset(to, value, bytes);
  return get_device_status();
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  ++global_counters().num_blocking_copies;
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
  return perform_memset(to, value, bytes);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return perform_memset(to, value, bytes);
}

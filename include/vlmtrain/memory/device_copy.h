#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace vlmtrain::memory {

// Copies from pinned host memory do not block the host. If the driver has no pinned memory, these
// functions fall back to pageable memory, so that copies block, and log one warning per process.

/// Returns a copy of the CPU tensor in pinned memory, or `tensor` itself if no pinned memory is
/// available.
at::Tensor try_pin_memory(const at::Tensor& tensor);

/// Returns an uninitialized fp32 CPU tensor, in pinned memory if available.
at::Tensor empty_pinned(at::IntArrayRef sizes);

/// Copies a CPU tensor to the device without blocking, from pinned memory if `device` is CUDA.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

/// Copies integers to the device as a tensor `[values.size()]`. REQUIRES: `type` is kInt or kLong
/// and represents all values.
at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type = at::kLong);

/// Copies from the host to a CUDA device on a side stream, concurrently with the kernels that are
/// launched on the current stream afterwards.
///
/// The destination tensors belong to the current stream. The copies start after the work that the
/// stream already has, and the stream waits for them before it uses or frees the tensors. The
/// caching allocator therefore sees the same calls in the same order however long copies take, and
/// a dry run on a virtual GPU reaches the same allocator state. record_stream() would not: it frees
/// a block whenever the device happens to be done with it.
///
/// Not thread-safe. No work may be launched on the current stream between the constructor and the
/// last call of add().
class AsyncHostToDevice {
 public:
  /// REQUIRES: `device` is CUDA, and the calling thread's current device.
  explicit AsyncHostToDevice(at::Device device);
  /// Waits as wait() does. REQUIRES: the tensors outlive this object.
  ~AsyncHostToDevice();
  AsyncHostToDevice(const AsyncHostToDevice&) = delete;
  AsyncHostToDevice& operator=(const AsyncHostToDevice&) = delete;

  /// Returns a device tensor to which `host` is copied from pinned memory. Its values are undefined
  /// until wait(). A meta tensor, as in a dry run, is allocated but not copied.
  at::Tensor add(const at::Tensor& host);

  /// Makes the current stream wait for the copies. Does not block the host.
  void wait();

 private:
  at::Device device_;
  c10::Event copy_event_;
  bool is_synchronized_ = true;
};

}  // namespace vlmtrain::memory

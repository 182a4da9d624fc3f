#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <span>

namespace vlmtrain::memory {

// Copies from pinned host memory do not block the host. If the driver has no pinned memory, these
// functions fall back to pageable memory, so that copies block, and log one warning per process.

/// Returns a copy of the CPU tensor in pinned memory, or `tensor` itself if no pinned memory is
/// available.
at::Tensor try_pin_memory(const at::Tensor& tensor);

/// Returns an uninitialized fp32 CPU tensor, in pinned memory if available.
at::Tensor make_pinned_tensor(at::IntArrayRef sizes);

/// Returns a copy of the tensor on `device`, or `tensor` itself if it is there already. Copies from
/// the CPU to CUDA use pinned memory and do not block.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

/// Copies integers to the device as a tensor `[values.size()]`. REQUIRES: `type` is kInt or kLong
/// and can represent all values.
at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type = at::kLong);

/// Copies from the host to a CUDA device on a side stream. They run concurrently with kernels that
/// are launched on the current stream afterwards.
///
/// The destination tensors belong to the current stream. The copies start after the work that is
/// already queued on that stream, and the stream waits for the copies before it uses or frees the
/// tensors. The caching allocator therefore gets the same calls in the same order, however long
/// copies take, and a dry run on a virtual GPU reaches the same allocator state. With
/// record_stream(), the time at which a block is freed would depend on the device.
///
/// Not thread-safe. No work may be launched on the current stream between the constructor and the
/// last call of copy_async().
class AsyncHostToDeviceCopier {
 public:
  /// REQUIRES: `device` is CUDA, and the calling thread's current device.
  explicit AsyncHostToDeviceCopier(at::Device device);
  /// Calls wait(). REQUIRES: the tensors that copy_async() returned outlive this object.
  ~AsyncHostToDeviceCopier();
  AsyncHostToDeviceCopier(const AsyncHostToDeviceCopier&) = delete;
  AsyncHostToDeviceCopier& operator=(const AsyncHostToDeviceCopier&) = delete;

  /// Returns a device tensor to which `host` is copied from pinned memory. Its values are undefined
  /// until wait(). A meta tensor, as in a dry run, is allocated but not copied.
  at::Tensor copy_async(const at::Tensor& host);

  /// Makes the current stream wait for the copies. Does not block the host. Further calls do
  /// nothing.
  void wait();

 private:
  at::Device device_;
  c10::Event copy_event_;
  bool is_synchronized_ = true;
};

/// Copies on a side stream between page-locked host memory and a buffer on a device. They run concurrently
/// with kernels that are launched on the current stream afterwards. Copies to the host have their own
/// stream, since GPUs copy in both directions at a time. On other devices than CUDA, copies are complete
/// at once. Not thread-safe.
class SlotCopier {
 public:
  explicit SlotCopier(at::Device device);

  /// Starts to copy `from` into `to`, of which one is a CPU tensor and the other is on the device, after the
  /// work that is queued already on the current stream, which may still use the buffer.
  void start(const at::Tensor& to, const at::Tensor& from);
  /// Calls `queue_work` with the stream of copies to the device as the current stream, so that the work that it
  /// queues there, or on streams that wait for the current one, is after the copies.
  void run_after_copies(const std::function<void()>& queue_work) const;
  /// Makes the current stream wait for the copies. Does not block the host.
  void wait();

 private:
  at::Device device_;
  c10::Event buffer_free_event_, copied_event_;
};

}  // namespace vlmtrain::memory

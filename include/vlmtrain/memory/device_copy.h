#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace vlmtrain::memory {

/// Copies a tensor of the host to the device without waiting: from pinned memory if `device` is CUDA, since only such a
/// copy does not hold up the host.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

/// The same of numbers: [n], of a type of integers that holds them all.
at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type = at::kLong);

/// Copies from the host to a CUDA device on a stream of their own, beside what the current stream is given after them.
///
/// The tensors are the current stream's, as any it allocates: copies begin once it has done what it was given before,
/// and it waits for them before it goes on to use or free the tensors. So the allocator sees the same calls in the same
/// order however long copies take, and a rehearsal on a virtual card ends up with its state; record_stream, which frees
/// a block when the device happens to be done with it, would not do.
///
/// One thread, and no work for the current stream between the constructor and the last call of add().
class AsyncHostToDevice {
 public:
  /// REQUIRES: `device` is CUDA, and the calling thread's current device.
  explicit AsyncHostToDevice(at::Device device);
  /// Waits as wait() does: REQUIRES that the tensors live longer.
  ~AsyncHostToDevice();
  AsyncHostToDevice(const AsyncHostToDevice&) = delete;
  AsyncHostToDevice& operator=(const AsyncHostToDevice&) = delete;

  /// A tensor of the device that `host` is copied to, from pinned memory; nothing is copied of a tensor that has but a
  /// shape (meta), as in a rehearsal. Without a value until wait().
  at::Tensor add(const at::Tensor& host);

  /// The current stream waits for the copies; the host does not.
  void wait();

 private:
  at::Device device_;
  c10::Event copy_event_;
  bool is_synchronized_ = true;
};

/// Pinned memory of the host, from and to which copies do not hold up the host. Where the driver has none left it is
/// plain memory, so that copies wait for the device, and the log says so once.

/// A copy of `tensor`, of the host, or `tensor` itself where there is no pinned memory.
at::Tensor try_pin_memory(const at::Tensor& tensor);

/// Room for so many fp32 values.
at::Tensor empty_pinned(at::IntArrayRef sizes);

}  // namespace vlmtrain::memory

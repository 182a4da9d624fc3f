#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace vlmtrain::memory {

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

}  // namespace vlmtrain::memory

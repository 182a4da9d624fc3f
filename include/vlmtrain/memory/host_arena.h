#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace vlmtrain::memory {

/// Host memory whose tensors a device reads and writes in place. For a CUDA device, it is page-locked
/// and mapped into the device's address space, so that kernels use it over the link (zero-copy). On a
/// virtual GPU it is address space only: nothing is written to its pages, so they take no memory. For
/// other devices, it is ordinary memory of the device. Not thread-safe.
class HostArena {
 public:
  explicit HostArena(at::Device device) : device_(device) {}

  /// Returns a tensor of zeros. For a CUDA device, it is a CPU tensor. Its memory is released with the
  /// arena and all tensors on it. Throws UserError: kDoesNotFit if the host has less available memory,
  /// kFailed if CUDA cannot map it. `purpose` is the key in errors.
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype, const char* purpose);

  /// Returns the tensor as the device sees it: the same memory, as a tensor on the device. REQUIRES:
  /// `tensor` is from allocate().
  at::Tensor view_on_device(const at::Tensor& tensor) const;

  /// Returns the bytes of all tensors.
  int64_t bytes() const { return bytes_; }

 private:
  at::Device device_;
  int64_t bytes_ = 0;
};

/// Waits for the device, and returns a CPU tensor on the memory of a tensor from
/// HostArena::view_on_device(), or of a dense part of it. Returns other tensors as they are; on a virtual
/// GPU all, so that no page is written. Thread-safe.
at::Tensor view_on_host(const at::Tensor& tensor);

}  // namespace vlmtrain::memory

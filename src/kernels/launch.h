#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns the entry points of the library that open_kernels() loaded. REQUIRES: is_available()
/// returned true for a kernel.
const Launchers& launchers();

/// Returns the element type of a tensor for the kernels' arguments. Throws InternalError for types
/// other than fp32, bf16 and fp16.
ElementType get_element_type(const at::Tensor& tensor);

/// A launch of a kernel that profilers and the planner's cost recorder see as an ATen operation.
/// Temporary object: construct it and call it once.
class KernelLaunch {
 public:
  /// Begins the operation `name`, a string literal, with inputs `reads` and outputs `writes`. The
  /// cost recorder counts the bytes of the listed tensors, so callers list the large ones only.
  /// Undefined tensors are skipped. REQUIRES: the first of `writes` is defined; all tensors are on
  /// its device.
  KernelLaunch(const char* name, at::ArrayRef<at::Tensor> reads, at::ArrayRef<at::Tensor> writes);

  /// Calls `launcher` with the current stream of the outputs' device. Throws c10::Error if the
  /// launch fails; an out-of-memory error has LibTorch's text.
  template <class Args>
  void operator()(int (*launcher)(const Args&, void*), const Args& args) {
    throw_on_error(launcher(args, stream_));
  }

 private:
  /// Throws c10::Error unless `error`, a cudaError_t, is 0.
  void throw_on_error(int error) const;

  const char* name_;
  at::RecordFunction record_function_{at::RecordScope::FUNCTION};
  c10::OptionalDeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace vlmtrain::kernels

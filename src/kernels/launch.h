#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns the entry points of the library that open_kernels() loaded. REQUIRES: has() returned
/// true.
const Launchers& launchers();

/// Returns the kernels' type of the tensor's elements. Throws InternalError for an unsupported
/// type.
ElementType get_element_type(const at::Tensor& tensor);

/// A launch that profilers and the planner's cost recorder see like an ATen operation, with its
/// inputs and outputs. Undefined tensors are left out.
class KernelLaunch {
 public:
  KernelLaunch(const char* name, at::ArrayRef<at::Tensor> reads, at::ArrayRef<at::Tensor> writes);

  /// Launches on the current stream of the outputs' device. Throws c10::Error as LibTorch does for
  /// its kernels.
  template <class Call>
  void operator()(int (*launcher)(const Call&, void*), const Call& call) {
    check(launcher(call, stream_));
  }

 private:
  void check(int error) const;

  const char* name_;
  at::RecordFunction record_{at::RecordScope::FUNCTION};
  c10::OptionalDeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace vlmtrain::kernels

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Of the library that open_kernels() loaded. REQUIRES: has() said yes.
const Launchers& launchers();

/// Throws InternalError for a type that no kernel has.
ElementType get_element_type(const at::Tensor& tensor);

/// A launch as profilers and the recorder of a plan's costs see it, beside ATen's operations: what it reads and what it
/// writes; undefined tensors are neither.
class KernelLaunch {
 public:
  KernelLaunch(const char* name, at::ArrayRef<at::Tensor> reads, at::ArrayRef<at::Tensor> writes);

  /// On the current stream of the tensors' device. Throws c10::Error as LibTorch does for its kernels.
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

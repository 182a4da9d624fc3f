#include "kernels/launch.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

/// CUDA's value. The first launch of a kernel loads its code, for which memory may be missing.
constexpr int kCudaErrorMemoryAllocation = 2;

std::vector<c10::IValue> to_ivalues(at::ArrayRef<at::Tensor> tensors) {
  std::vector<c10::IValue> values;
  values.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) values.emplace_back(tensor);
  }
  return values;
}

}  // namespace

ElementType get_element_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ElementType::kFloat;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kHalf;
    default:
      throw InternalError("custom kernels do not support this data type");
  }
}

KernelLaunch::KernelLaunch(const char* name, at::ArrayRef<at::Tensor> reads, at::ArrayRef<at::Tensor> writes)
    : name_(name) {
  if (record_function_.isActive()) {
    const std::vector<c10::IValue> inputs = to_ivalues(reads);
    if (record_function_.needsInputs()) {
      record_function_.before(name, &inputs);
    } else {
      record_function_.before(name);
    }
    if (record_function_.needsOutputs()) record_function_.setOutputs(to_ivalues(writes));
  }
  const at::Device device = writes.front().device();
  if (device.is_cpu()) return;
  guard_.reset_device(device);
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void KernelLaunch::throw_on_error(int error) const {
  if (error == 0) return;
  // LibTorch's text, by which memory/out_of_memory.cpp recognizes the error.
  TORCH_CHECK(error != kCudaErrorMemoryAllocation, "CUDA error: out of memory\nthe kernel ", name_,
              " could not be loaded");
  TORCH_CHECK(false, "CUDA error ", error, " while launching the kernel ", name_);
}

}  // namespace vlmtrain::kernels

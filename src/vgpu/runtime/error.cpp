#include "vgpu/runtime/error.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace vlmtrain::vgpu {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> broken_by{cudaSuccess};

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

/// The errors that the stand-ins give.
constexpr std::array kErrors{
    ErrorText{cudaSuccess, "cudaSuccess", "no error"},
    ErrorText{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorText{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorText{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    ErrorText{cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "launch without a configuration"},
    ErrorText{cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    ErrorText{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorText{cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    ErrorText{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorText{cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
              "no kernel image is available for execution on the device"},
    ErrorText{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    ErrorText{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kOther{cudaErrorUnknown, "cudaErrorUnknown", "an error that no stand-in gives"};
  const auto* const found = std::ranges::find(kErrors, error, &ErrorText::error);
  return found == kErrors.end() ? kOther : *found;
}

}  // namespace

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t break_device(cudaError_t error) {
  broken_by = error;
  return fail(error);
}

cudaError_t state_of_device() {
  const cudaError_t error = broken_by;
  return error == cudaSuccess ? cudaSuccess : fail(error);
}

}  // namespace vlmtrain::vgpu

cudaError_t cudaGetLastError() {
  const cudaError_t error = vlmtrain::vgpu::last_error;
  vlmtrain::vgpu::last_error = vlmtrain::vgpu::broken_by;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return vlmtrain::vgpu::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return vlmtrain::vgpu::text_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return vlmtrain::vgpu::text_of(error).text;
}

#include "vgpu/runtime/error.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace vlmtrain::vgpu {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> sticky_error{cudaSuccess};

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

const ErrorText& find_error_text(cudaError_t error) {
  static constexpr ErrorText kUnknownError{cudaErrorUnknown, "cudaErrorUnknown", "an error that no stand-in gives"};
  const auto* const it = std::ranges::find(kErrors, error, &ErrorText::error);
  return it == kErrors.end() ? kUnknownError : *it;
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t set_sticky_error(cudaError_t error) {
  sticky_error = error;
  return set_last_error(error);
}

cudaError_t get_device_status() {
  const cudaError_t error = sticky_error;
  return error == cudaSuccess ? cudaSuccess : set_last_error(error);
}

}  // namespace vlmtrain::vgpu

cudaError_t cudaGetLastError() {
  const cudaError_t error = vlmtrain::vgpu::last_error;
  vlmtrain::vgpu::last_error = vlmtrain::vgpu::sticky_error;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return vlmtrain::vgpu::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return vlmtrain::vgpu::find_error_text(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return vlmtrain::vgpu::find_error_text(error).text;
}

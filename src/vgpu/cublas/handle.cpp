// cuBLAS's handle: what is set can be read back.

#include "vgpu/core/handle.h"

#include <cublas_v2.h>

#include <memory>

#include "vgpu/core/faults.h"

namespace vlmtrain::vgpu {

namespace {

struct Settings {
  cudaStream_t stream = nullptr;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
};

Settings& settings(cublasHandle_t handle) {
  return get_object<Settings>(handle);
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::fault_injector;
using vlmtrain::vgpu::FaultPoint;
using vlmtrain::vgpu::make_handle;
using vlmtrain::vgpu::Settings;
using vlmtrain::vgpu::settings;
using vlmtrain::vgpu::take_handle;

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (fault_injector().should_fail(FaultPoint::kCublasCreate)) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = make_handle<cublasHandle_t>(std::make_unique<Settings>());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  take_handle<Settings>(handle).reset();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType property, int* value) {
  *value =
      property == MAJOR_VERSION ? CUBLAS_VER_MAJOR : (property == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH);
  return CUBLAS_STATUS_SUCCESS;
}

/// The workspace is the caller's own memory, which LibTorch takes from its allocator.
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  settings(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = settings(handle).stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  settings(handle).math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = settings(handle).math_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  settings(handle).pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = settings(handle).pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  settings(handle).atomics_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  *mode = settings(handle).atomics_mode;
  return CUBLAS_STATUS_SUCCESS;
}

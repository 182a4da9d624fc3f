// cuBLAS: handles that store their settings, and matrix products that are counted but not computed.

#include <cublas_v2.h>

#include <memory>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

namespace {

struct CublasHandleSettings {
  cudaStream_t stream = nullptr;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
};

CublasHandleSettings& get_settings(cublasHandle_t handle) {
  return get_object<CublasHandleSettings>(handle);
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::CublasHandleSettings;
using vlmtrain::vgpu::fault_injector;
using vlmtrain::vgpu::FaultPoint;
using vlmtrain::vgpu::get_settings;
using vlmtrain::vgpu::make_handle;
using vlmtrain::vgpu::take_ownership;

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (fault_injector().consume_scheduled_fault(FaultPoint::kCublasCreate)) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = make_handle<cublasHandle_t>(std::make_unique<CublasHandleSettings>());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  take_ownership<CublasHandleSettings>(handle).reset();
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

/// LibTorch allocates the workspace itself.
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  get_settings(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = get_settings(handle).stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  get_settings(handle).math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = get_settings(handle).math_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  get_settings(handle).pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = get_settings(handle).pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  get_settings(handle).atomics_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  *mode = get_settings(handle).atomics_mode;
  return CUBLAS_STATUS_SUCCESS;
}

// Matrix products that LibTorch calls.

namespace {

cublasStatus_t record_matmul(int m, int n, int k, int batch, cudaDataType input_type, cudaDataType output_type) {
  vlmtrain::vgpu::matmul_counter().add({m, n, k, batch, input_type, output_type});
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void*,
                            const void*, cudaDataType a_type, int, const void*, cudaDataType, int, const void*, void*,
                            cudaDataType c_type, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return record_matmul(m, n, k, 1, a_type, c_type);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                          const void*, const void*, cudaDataType a_type, int, long long, const void*,
                                          cudaDataType, int, long long, const void*, void*, cudaDataType c_type, int,
                                          long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return record_matmul(m, n, k, batch, a_type, c_type);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                             const void*, cudaDataType a_type, int, const void*, cudaDataType, int, const float*, void*,
                             cudaDataType c_type, int) {
  return record_matmul(m, n, k, 1, a_type, c_type);
}

cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                           const float*, int, const float*, int, const float*, float*, int) {
  return record_matmul(m, n, k, 1, CUDA_R_32F, CUDA_R_32F);
}

cublasStatus_t cublasDgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const double*,
                           const double*, int, const double*, int, const double*, double*, int) {
  return record_matmul(m, n, k, 1, CUDA_R_64F, CUDA_R_64F);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const float*, const float*, int, long long, const float*, int, long long,
                                         const float*, float*, int, long long, int batch) {
  return record_matmul(m, n, k, batch, CUDA_R_32F, CUDA_R_32F);
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const double*, const double*, int, long long, const double*, int, long long,
                                         const double*, double*, int, long long, int batch) {
  return record_matmul(m, n, k, batch, CUDA_R_64F, CUDA_R_64F);
}

cublasStatus_t cublasSgemv(cublasHandle_t, cublasOperation_t operation, int rows, int columns, const float*,
                           const float*, int, const float*, int, const float*, float*, int) {
  const bool is_not_transposed = operation == CUBLAS_OP_N;
  return record_matmul(is_not_transposed ? rows : columns, 1, is_not_transposed ? columns : rows, 1, CUDA_R_32F,
                       CUDA_R_32F);
}

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

/// A matrix as in cuBLAS's arguments.
struct MatrixArgument {
  const void* data;
  int leading_dimension;
  cudaDataType type;
};

struct ProductSizes {
  int m, n, k, batch;
};

cublasStatus_t record_matmul(const ProductSizes& sizes, const MatrixArgument& a, const MatrixArgument& b,
                             const MatrixArgument& c) {
  // Transposition exchanges rows and columns, which does not change the alignment.
  const int alignment_bytes =
      vlmtrain::vgpu::compute_alignment_bytes({{a.data, sizes.m, sizes.k, a.leading_dimension, a.type},
                                               {b.data, sizes.k, sizes.n, b.leading_dimension, b.type},
                                               {c.data, sizes.m, sizes.n, c.leading_dimension, c.type}});
  vlmtrain::vgpu::matmul_counter().add({sizes.m, sizes.n, sizes.k, sizes.batch, a.type, c.type, alignment_bytes});
  return CUBLAS_STATUS_SUCCESS;
}

/// Records a product of a matrix and a vector as a matrix product.
cublasStatus_t record_matrix_vector_product(cublasOperation_t operation, int rows, int columns, const void* a, int lda,
                                            const void* x, void* y, cudaDataType type) {
  const bool is_transposed = operation != CUBLAS_OP_N;
  const int m = is_transposed ? columns : rows, k = is_transposed ? rows : columns;
  return record_matmul({m, 1, k, 1}, {a, lda, type}, {x, 0, type}, {y, 0, type});
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void*,
                            const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb,
                            const void*, void* c, cudaDataType c_type, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  return record_matmul({m, n, k, 1}, {a, lda, a_type}, {b, ldb, b_type}, {c, ldc, c_type});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                          const void*, const void* a, cudaDataType a_type, int lda, long long,
                                          const void* b, cudaDataType b_type, int ldb, long long, const void*, void* c,
                                          cudaDataType c_type, int ldc, long long, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  return record_matmul({m, n, k, batch}, {a, lda, a_type}, {b, ldb, b_type}, {c, ldc, c_type});
}

cublasStatus_t cublasSgemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                             const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb,
                             const float*, void* c, cudaDataType c_type, int ldc) {
  return record_matmul({m, n, k, 1}, {a, lda, a_type}, {b, ldb, b_type}, {c, ldc, c_type});
}

cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                           const float* a, int lda, const float* b, int ldb, const float*, float* c, int ldc) {
  return record_matmul({m, n, k, 1}, {a, lda, CUDA_R_32F}, {b, ldb, CUDA_R_32F}, {c, ldc, CUDA_R_32F});
}

cublasStatus_t cublasDgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const double*,
                           const double* a, int lda, const double* b, int ldb, const double*, double* c, int ldc) {
  return record_matmul({m, n, k, 1}, {a, lda, CUDA_R_64F}, {b, ldb, CUDA_R_64F}, {c, ldc, CUDA_R_64F});
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const float*, const float* a, int lda, long long, const float* b, int ldb,
                                         long long, const float*, float* c, int ldc, long long, int batch) {
  return record_matmul({m, n, k, batch}, {a, lda, CUDA_R_32F}, {b, ldb, CUDA_R_32F}, {c, ldc, CUDA_R_32F});
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const double*, const double* a, int lda, long long, const double* b, int ldb,
                                         long long, const double*, double* c, int ldc, long long, int batch) {
  return record_matmul({m, n, k, batch}, {a, lda, CUDA_R_64F}, {b, ldb, CUDA_R_64F}, {c, ldc, CUDA_R_64F});
}

cublasStatus_t cublasSgemv(cublasHandle_t, cublasOperation_t operation, int rows, int columns, const float*,
                           const float* a, int lda, const float* x, int, const float*, float* y, int) {
  return record_matrix_vector_product(operation, rows, columns, a, lda, x, y, CUDA_R_32F);
}

// The matrix products of cuBLAS that LibTorch calls: counted by size, and done.

#include "vgpu/core/products.h"

#include <cublas_v2.h>

namespace {

cublasStatus_t count_matmul(int m, int n, int k, int batch, cudaDataType input_type, cudaDataType output_type) {
  vlmtrain::vgpu::matmul_counter().add({m, n, k, batch, input_type, output_type});
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void*,
                            const void*, cudaDataType a_type, int, const void*, cudaDataType, int, const void*, void*,
                            cudaDataType c_type, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return count_matmul(m, n, k, 1, a_type, c_type);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                          const void*, const void*, cudaDataType a_type, int, long long, const void*,
                                          cudaDataType, int, long long, const void*, void*, cudaDataType c_type, int,
                                          long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return count_matmul(m, n, k, batch, a_type, c_type);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                             const void*, cudaDataType a_type, int, const void*, cudaDataType, int, const float*, void*,
                             cudaDataType c_type, int) {
  return count_matmul(m, n, k, 1, a_type, c_type);
}

cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*,
                           const float*, int, const float*, int, const float*, float*, int) {
  return count_matmul(m, n, k, 1, CUDA_R_32F, CUDA_R_32F);
}

cublasStatus_t cublasDgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const double*,
                           const double*, int, const double*, int, const double*, double*, int) {
  return count_matmul(m, n, k, 1, CUDA_R_64F, CUDA_R_64F);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const float*, const float*, int, long long, const float*, int, long long,
                                         const float*, float*, int, long long, int batch) {
  return count_matmul(m, n, k, batch, CUDA_R_32F, CUDA_R_32F);
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const double*, const double*, int, long long, const double*, int, long long,
                                         const double*, double*, int, long long, int batch) {
  return count_matmul(m, n, k, batch, CUDA_R_64F, CUDA_R_64F);
}

cublasStatus_t cublasSgemv(cublasHandle_t, cublasOperation_t operation, int rows, int columns, const float*,
                           const float*, int, const float*, int, const float*, float*, int) {
  const bool is_not_transposed = operation == CUBLAS_OP_N;
  return count_matmul(is_not_transposed ? rows : columns, 1, is_not_transposed ? columns : rows, 1, CUDA_R_32F,
                      CUDA_R_32F);
}

// cuBLASLt: matrix products that are counted but not computed. The only algorithm that the
// heuristic returns needs no workspace. This does not change LibTorch's memory use, because
// LibTorch allocates the workspace before it queries algorithms.

#include <cublasLt.h>

#include <cstring>
#include <memory>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

namespace {

struct LibraryContext {};

struct MatmulDescriptor {
  cublasOperation_t a_operation = CUBLAS_OP_N;
};

struct MatrixLayout {
  cudaDataType type = CUDA_R_32F;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t leading_dimension = 0;
  int32_t batch = 1;
};

struct MatmulPreference {};

/// Creates an object whose members are `arguments`, and sets `*handle` to a handle that owns it.
template <class Object, class Handle, class... Arguments>
cublasStatus_t create_object(Handle* handle, Arguments... arguments) {
  *handle = make_handle<Handle>(std::make_unique<Object>(Object{arguments...}));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t destroy_object(Handle handle) {
  take_ownership<Object>(handle).reset();
  return CUBLAS_STATUS_SUCCESS;
}

/// Copies the attribute's value if the attribute is `expected`.
template <class Attribute, class Value>
void copy_matching_attribute(Attribute attribute, Attribute expected, const void* from, size_t bytes, Value& value) {
  if (attribute == expected && bytes == sizeof value) std::memcpy(&value, from, bytes);
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::copy_matching_attribute;
using vlmtrain::vgpu::create_object;
using vlmtrain::vgpu::destroy_object;
using vlmtrain::vgpu::fault_injector;
using vlmtrain::vgpu::FaultPoint;
using vlmtrain::vgpu::get_object;
using vlmtrain::vgpu::LibraryContext;
using vlmtrain::vgpu::MatmulDescriptor;
using vlmtrain::vgpu::MatmulPreference;
using vlmtrain::vgpu::MatrixLayout;

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (fault_injector().consume_scheduled_fault(FaultPoint::kCublasCreate)) return CUBLAS_STATUS_ALLOC_FAILED;
  return create_object<LibraryContext>(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy_object<LibraryContext>(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t, cudaDataType_t) {
  return create_object<MatmulDescriptor>(description);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return destroy_object<MatmulDescriptor>(description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  copy_matching_attribute(attribute, CUBLASLT_MATMUL_DESC_TRANSA, value, bytes,
                          get_object<MatmulDescriptor>(description).a_operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
  return create_object<MatrixLayout>(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                                     leading_dimension);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy_object<MatrixLayout>(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  copy_matching_attribute(attribute, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, value, bytes,
                          get_object<MatrixLayout>(layout).batch);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create_object<MatmulPreference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy_object<MatmulPreference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *results = {};
  results->state = CUBLAS_STATUS_SUCCESS;
  results->wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void*, const void*, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t) {
  const auto make_operand = [](const void* data, cublasLtMatrixLayout_t handle) {
    const auto& layout = get_object<MatrixLayout>(handle);
    return vlmtrain::vgpu::MatrixOperand{data, layout.rows, layout.columns, layout.leading_dimension, layout.type};
  };
  const auto& input = get_object<MatrixLayout>(a_layout);
  const auto& output = get_object<MatrixLayout>(d_layout);
  const bool is_not_transposed = get_object<MatmulDescriptor>(description).a_operation == CUBLAS_OP_N;
  const int alignment_bytes = vlmtrain::vgpu::compute_alignment_bytes(
      {make_operand(a, a_layout), make_operand(b, b_layout), make_operand(d, d_layout)});
  vlmtrain::vgpu::matmul_counter().add({output.rows, output.columns, is_not_transposed ? input.columns : input.rows,
                                        output.batch, input.type, output.type, alignment_bytes});
  return CUBLAS_STATUS_SUCCESS;
}

#include "vlmtrain/memory/libtorch_env.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::memory {
namespace {

TEST(LibtorchEnvSettingsTest, RecognizesAllocatorAndKernelVariables) {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
                           "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_BLAS_PREFER_CUBLASLT",
                           "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                           "TORCH_LINEAR_FLATTEN_3D", "PYTORCH_TUNABLEOP_ENABLED", "TORCH_CUDNN_V8_API_DISABLED"}) {
    EXPECT_TRUE(is_libtorch_env_setting(name)) << name;
  }
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES", "PATH",
                           "OMP_NUM_THREADS", "VLMTRAIN_RESERVED_LIMIT_BYTES", ""}) {
    EXPECT_FALSE(is_libtorch_env_setting(name)) << name;
  }
}

TEST(LibtorchEnvSettingsTest, AreUnsetAndReported) {
  setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", 1);
  setenv("PYTORCH_TUNABLEOP_ENABLED", "1", 1);
  EXPECT_THAT(
      unset_libtorch_env_settings(),
      testing::UnorderedElementsAre("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "PYTORCH_TUNABLEOP_ENABLED=1"));
  EXPECT_EQ(getenv("PYTORCH_CUDA_ALLOC_CONF"), nullptr);
  EXPECT_THAT(unset_libtorch_env_settings(), testing::IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::memory

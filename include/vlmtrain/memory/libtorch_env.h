#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::memory {

/// Returns whether an environment variable of this name changes LibTorch's CUDA allocations or
/// choice of kernels: PYTORCH_CUDA_ALLOC_CONF, CUBLAS_WORKSPACE_CONFIG, TORCH_BLAS_PREFER_CUBLASLT.
/// Memory plans assume that none is set.
bool is_libtorch_env_setting(std::string_view name);

/// Returns the LibTorch settings in this process's environment, as NAME=VALUE.
std::vector<std::string> find_libtorch_env_settings();

/// Removes the LibTorch settings from this process's environment, so that a run matches its plan.
/// Returns what was removed. REQUIRES: LibTorch's CUDA library is not loaded, and the process has
/// one thread.
std::vector<std::string> unset_libtorch_env_settings();

/// Calls unset_libtorch_env_settings() and logs a warning that names what was removed.
void ignore_libtorch_env_settings();

/// The environment variable that limits the bytes the allocator may reserve. Neither the planner
/// nor the look-ahead reads it, so the GPU is then smaller than they assume. For tests and
/// scripts/gpu_truth.py. Read by open_device().
inline constexpr const char* kReservedLimitVariable = "VLMTRAIN_RESERVED_LIMIT_BYTES";

}  // namespace vlmtrain::memory

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
/// Returns the removed settings as NAME=VALUE. REQUIRES: LibTorch's CUDA library is not loaded, and
/// the process has one thread.
std::vector<std::string> unset_libtorch_env_settings();

/// Calls unset_libtorch_env_settings() and logs one warning that lists the removed settings, if
/// any.
void ignore_libtorch_env_settings();

/// Environment variable that limits the bytes that PyTorch's CUDA allocator may reserve. The
/// planner and the look-ahead ignore it, so the GPU is smaller than they assume. Used by tests and
/// scripts/gpu_queue. open_device() and limit_reserved_bytes() apply it.
inline constexpr const char* kReservedLimitVariable = "VLMTRAIN_RESERVED_LIMIT_BYTES";

}  // namespace vlmtrain::memory

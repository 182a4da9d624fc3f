#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::memory {

/// Whether an environment variable of this name changes what LibTorch's CUDA code allocates or which kernels it takes:
/// PYTORCH_CUDA_ALLOC_CONF, CUBLAS_WORKSPACE_CONFIG, TORCH_BLAS_PREFER_CUBLASLT, … Plans know nothing of them.
bool is_libtorch_env_setting(std::string_view name);

/// Those of this process's environment, as NAME=VALUE.
std::vector<std::string> find_libtorch_env_settings();

/// Takes these out of this process's environment, so that a run does what its plan assumes; what they were. To be
/// called before LibTorch's CUDA library is loaded, by a process with one thread.
std::vector<std::string> unset_libtorch_env_settings();

/// The same, with a warning that names them.
void ignore_libtorch_env_settings();

/// An environment variable of our own: the most bytes that the allocator may reserve, unknown to plan and twin, for
/// which the card is then smaller than they take it to be. For scripts/gpu_truth.py and tests. Read when a device is
/// opened.
inline constexpr const char* kReservedLimitVariable = "VLMTRAIN_RESERVED_LIMIT_BYTES";

}  // namespace vlmtrain::memory

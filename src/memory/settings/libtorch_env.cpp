#include "vlmtrain/memory/libtorch_env.h"

#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::memory {

namespace {

// Variables that LibTorch 2.11's libraries read, found with strings(1). Variables for logs and
// debugging are omitted, and so are the driver's own (CUDA_LAUNCH_BLOCKING), which change only the
// duration of a step.
constexpr std::array kLibtorchSettingNames{
    // The caching allocator.
    std::string_view{"PYTORCH_ALLOC_CONF"},
    std::string_view{"PYTORCH_CUDA_ALLOC_CONF"},
    std::string_view{"PYTORCH_HIP_ALLOC_CONF"},
    std::string_view{"PYTORCH_NO_CUDA_MEMORY_CACHING"},
    std::string_view{"PYTORCH_NO_HIP_MEMORY_CACHING"},
    std::string_view{"TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"},
    // Workspaces and kernels of matrix products.
    std::string_view{"CUBLAS_WORKSPACE_CONFIG"},
    std::string_view{"CUBLASLT_WORKSPACE_SIZE"},
    std::string_view{"TORCH_CUBLASLT_UNIFIED_WORKSPACE"},
    std::string_view{"TORCH_BLAS_PREFER_CUBLASLT"},
    std::string_view{"TORCH_BLAS_PREFER_HIPBLASLT"},
    std::string_view{"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"},
    std::string_view{"TORCH_LINALG_PREFER_CUSOLVER"},
    std::string_view{"TORCH_LINEAR_FLATTEN_3D"},
};

constexpr std::array kLibtorchSettingPrefixes{std::string_view{"PYTORCH_TUNABLEOP_"}, std::string_view{"TORCH_CUDNN_"}};

}  // namespace

bool is_libtorch_env_setting(std::string_view name) {
  return std::ranges::find(kLibtorchSettingNames, name) != kLibtorchSettingNames.end() ||
         std::ranges::any_of(kLibtorchSettingPrefixes,
                             [name](std::string_view prefix) { return name.starts_with(prefix); });
}

std::vector<std::string> find_libtorch_env_settings() {
  std::vector<std::string> settings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (is_libtorch_env_setting(text.substr(0, text.find('=')))) settings.emplace_back(text);
  }
  return settings;
}

std::vector<std::string> unset_libtorch_env_settings() {
  auto settings = find_libtorch_env_settings();
  for (const auto& setting : settings) unsetenv(setting.substr(0, setting.find('=')).c_str());
  return settings;
}

void ignore_libtorch_env_settings() {
  const auto settings = unset_libtorch_env_settings();
  if (settings.empty()) return;
  spdlog::warn("{} in the environment is ignored, because the memory plan does not include it; set {} or {} instead",
               fmt::join(settings, ", "), keys::memory::kExpandableSegments, keys::memory::kLimitGb);
}

}  // namespace vlmtrain::memory

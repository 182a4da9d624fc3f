#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::memory {

/// The oldest NVIDIA driver branch that CUDA 13 supports, for docs and messages.
inline constexpr const char* kMinDriverVersion = "580";

/// Returns whether LibTorch has machine code for a GPU of this compute capability (× 10): code for
/// the same major version and no newer minor version. LibTorch ships no PTX that the driver could
/// compile for newer GPUs.
bool has_kernel_code(int architecture);

/// Locations of the NVIDIA driver's files. Tests pass other locations.
struct DriverPaths {
  std::filesystem::path library = "libcuda.so.1";  ///< argument of dlopen()
  std::filesystem::path proc_folder = "/proc/driver/nvidia";
  std::filesystem::path device_folder = "/dev";
};

/// Whether a machine's GPUs can be used.
enum class DriverState {
  kAbsent,    ///< no driver or no GPU: the machine has only its CPU
  kHidden,    ///< CUDA_VISIBLE_DEVICES hides every GPU on purpose (empty, or -1)
  kUnusable,  ///< a GPU or driver exists but does not work; a fallback to the CPU would hide the problem
  kUsable,
};

/// A GPU that this process may use.
struct VisibleGpu {
  std::string name;      ///< "NVIDIA H100 80GB HBM3"
  int architecture = 0;  ///< compute capability × 10
};

/// Returns a clause for messages: why a GPU without kernel code cannot be used, and what to do.
/// REQUIRES: !has_kernel_code(gpu.architecture).
std::string explain_missing_kernel_code(const VisibleGpu& gpu);

/// The result of probing the driver.
struct DriverProbeResult {
  DriverState state = DriverState::kAbsent;
  /// Short fixed name of the result, listed in docs/how-to/check-a-machine.md: "no driver", "too old", "usable".
  std::string name = "no driver";
  /// Clause for messages: why the driver is not usable, and what to do. Empty for kUsable, and for
  /// kAbsent if no driver is installed.
  std::string reason;
  std::vector<VisibleGpu> gpus;  ///< in CUDA's order; empty unless kUsable
};

/// Queries the driver library for the GPUs that this process may use. Does not load LibTorch's CUDA
/// library and creates no context. Never throws.
DriverProbeResult probe_driver(const DriverPaths& paths = {});

/// Returns "no GPU is usable", "only 1 GPU is usable" or "only 2 GPUs are usable" for messages.
std::string describe_usable_gpus(int64_t count);

/// Returns the version of the kernel module, such as "550.54.15", or an empty string if none is
/// loaded.
std::string read_kernel_module_version(const DriverPaths& paths = {});

/// Memory of a GPU, over all processes.
struct GpuMemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  ///< the query's own temporary context counts as used
  int error = 0;           ///< CUresult of the failed driver call; -1: the function does not exist
};

/// CUDA_ERROR_OUT_OF_MEMORY, which the driver also returns if it cannot create a context.
inline constexpr int kCudaErrorOutOfMemory = 2;

/// Queries the driver for a GPU's memory with a temporary context. `index` is an index into
/// DriverProbeResult::gpus. Never throws.
GpuMemoryInfo query_gpu_memory(int index, const DriverPaths& paths = {});

}  // namespace vlmtrain::memory

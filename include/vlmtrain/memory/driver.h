#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::memory {

/// The oldest driver that CUDA 13 runs on, as docs and messages name it.
inline constexpr const char* kOldestDriver = "580";

/// Whether LibTorch has code for a card of this compute capability (× 10): machine code for the same major version that
/// is not newer than the card. It comes without PTX, which a driver could compile for a newer one.
bool has_kernel_code(int architecture);

/// Where a machine says what NVIDIA hardware and driver it has; other places are for tests.
struct DriverPaths {
  std::filesystem::path library = "libcuda.so.1";  ///< as dlopen() takes it
  std::filesystem::path proc = "/proc/driver/nvidia";
  std::filesystem::path devices = "/dev";
};

enum class DriverState {
  kAbsent,    ///< no driver, or no card: the CPU is what this machine has
  kHidden,    ///< CUDA_VISIBLE_DEVICES hides every card on purpose (empty, or -1)
  kUnusable,  ///< a card or a driver is there, and does not serve: training on the CPU instead would be an accident
  kUsable,
};

struct VisibleGpu {
  std::string name;      ///< NVIDIA H100 80GB HBM3
  int architecture = 0;  ///< compute capability × 10
};

/// Why no training is possible on a card for which has_kernel_code() is false, with the remedy, as part of a sentence.
std::string explain_missing_kernel_code(const VisibleGpu& gpu);

struct DriverProbe {
  DriverState state = DriverState::kAbsent;
  /// Which case it is, one of the short fixed names that docs/doctor.md lists: "no driver", "too old", "usable".
  std::string name = "no driver";
  /// Why it is not usable, with the remedy, as part of a sentence; of kAbsent empty where there is nothing to say.
  std::string reason;
  std::vector<VisibleGpu> gpus;  ///< of kUsable: those that this process sees, in CUDA's order
};

/// Asks the driver's library what this process may use; LibTorch's CUDA library is not needed for it. Never throws.
/// Makes no context.
DriverProbe probe_driver(const DriverPaths& paths = {});

/// The version of the kernel's module, such as 550.54.15; empty where there is none.
std::string module_version(const DriverPaths& paths = {});

/// Of a card, for any process.
struct GpuMemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  ///< beside a context, which it takes to ask
  int error = 0;           ///< of the driver's call that failed, as cuda.h counts; -1: there is no such call
};

/// The driver's out of memory (CUDA_ERROR_OUT_OF_MEMORY), also where not even a context finds room.
inline constexpr int kDriverOutOfMemory = 2;

/// Asks the driver, with a context that lives meanwhile. `index`: among DriverProbe::cards. Never throws.
GpuMemoryInfo query_gpu_memory(int index, const DriverPaths& paths = {});

}  // namespace vlmtrain::memory

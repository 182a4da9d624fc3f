#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace vlmtrain::vgpu {

/// A module: the device code of an object file, compiled for several architectures. Thread-safe.
class FatBinary {
 public:
  /// `wrapper` is the argument of __cudaRegisterFatBinary. It must outlive this object.
  explicit FatBinary(const void* wrapper) : fat_binary_wrapper_(wrapper) {}

  /// Returns the architecture of the code that a GPU of `architecture` would run: the newest
  /// machine code with the same major version that is not newer than the GPU, else
  /// the newest PTX that is not newer than the GPU. Returns 0 if neither exists. Architectures are
  /// compute capabilities × 10.
  int find_code_architecture(int architecture);

  /// Loads the module if it is not loaded, which has the configured ModuleLoadCost. Called for each
  /// launch, because the driver loads a module at its first launch. Returns false if memory does
  /// not suffice; the next launch tries again. REQUIRES: virtual_gpu() is not null.
  bool load();

 private:
  void parse();

  const void* fat_binary_wrapper_;
  std::once_flag parse_once_flag_;
  std::vector<int> machine_code_architectures_;
  std::vector<int> ptx_architectures_;
  std::mutex load_mutex_;
  std::atomic<bool> is_loaded_{false};
};

/// A registered kernel and its state.
struct Kernel {
  const char* name = nullptr;  ///< mangled
  FatBinary* module = nullptr;
  std::atomic<int64_t> max_dynamic_shared_bytes{48
                                                << 10};  ///< dynamic shared memory per block; the program may raise it
  std::atomic<uint64_t> num_launches{0};                 ///< since the last reset_launch_counts()
};

/// A __device__ variable.
struct DeviceVariable {
  uint64_t address = 0;
  size_t bytes = 0;
};

/// The fat binaries, kernels and variables that the startup code of CUDA libraries registers.
/// Kernels and variables are identified by the address of their host-side counterpart, which is
/// also the kernel's handle. Entries are never removed. Thread-safe.
class KernelRegistry {
 public:
  /// The registry owns the result.
  FatBinary* add_fat_binary(const void* wrapper);
  void add_kernel(const void* host_function, const char* name, FatBinary* module);
  void add_variable(const void* host_variable, size_t bytes);

  /// Returns null if the function is not registered. The registry owns the kernel.
  Kernel* find_kernel(const void* host_function);
  /// Returns nothing if the variable is not registered.
  std::optional<DeviceVariable> find_variable(const void* host_variable) const;

  /// Visits the kernels launched since the last reset_launch_counts().
  void for_each_launched_kernel(void (*visit)(void* context, const char* name, uint64_t num_launches),
                                void* context) const;
  void reset_launch_counts();

 private:
  mutable std::shared_mutex mutex_;
  std::deque<FatBinary> binaries_;
  std::unordered_map<const void*, Kernel> kernels_;
  std::unordered_map<const void*, DeviceVariable> variables_;
};

/// Returns the registry of this process.
KernelRegistry& kernel_registry();

}  // namespace vlmtrain::vgpu

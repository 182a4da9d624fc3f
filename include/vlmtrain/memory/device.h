#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::memory {

/// Returns the GPU index that a device name denotes: 0 for `cuda`, N for `cuda:N`. Returns nothing
/// for any other name.
std::optional<int> parse_cuda_index(const std::string& name);

/// Opens the device `cpu`, `cuda`, `cuda:N`, or `auto` (CUDA unless the machine has no GPU or hides
/// it, else the CPU). For CUDA, loads LibTorch's CUDA library from the directory of the CPU
/// library, after ignore_libtorch_env_settings(); CPU runs do not load it. Throws UserError: kUsage
/// for an unknown name, kFailed with the reason if CUDA is not usable.
at::Device open_device(const std::string& name);

/// Returns whether the stub libraries of the virtual GPU are loaded. No driver reports their
/// device.
bool is_virtual_gpu_loaded();

/// Properties of a GPU, as its driver reports them.
struct DeviceProperties {
  std::string name;      ///< "NVIDIA H100 80GB HBM3"
  int architecture = 0;  ///< compute capability × 10
  int num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

/// Returns the properties of a GPU. Creates the CUDA context if it does not exist. Throws UserError
/// (kFailed) if a CUDA call fails. REQUIRES: `device` is a CUDA device from open_device().
DeviceProperties get_device_properties(at::Device device);

/// Returns the PCI bus id, such as "0000:17:00.0", by which two ranks detect that they share a GPU.
/// Throws and REQUIRES as get_device_properties().
std::string get_pci_bus_id(at::Device device);

/// Returns the GPU memory that the driver has free, for any process. Throws and REQUIRES as
/// get_device_properties().
int64_t get_free_device_bytes(at::Device device);

/// Returns the compute capability × 10 of a CUDA device. Makes two calls of the CUDA runtime.
int get_architecture(at::Device device);

/// Device memory as PyTorch's caching allocator counts it; zeros on the CPU.
struct DeviceMemoryStats {
  int64_t allocated_peak_bytes = 0;  ///< since the last reset_peak_memory_stats()
  int64_t reserved_peak_bytes = 0;   ///< since the last reset_peak_memory_stats()
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
};

/// Returns the allocator's counters. Does not synchronize the device.
DeviceMemoryStats get_device_memory_stats(at::Device device);
/// Sets the peaks to the current values.
void reset_peak_memory_stats(at::Device device);

/// Returns how often the allocator emptied its cache and retried an allocation; 0 on the CPU.
int64_t get_num_alloc_retries(at::Device device);

/// Returns unused cached memory, including cuBLAS workspaces, to the driver; synchronizes the
/// device. On the CPU, returns unused memory to the system as far as malloc can.
void empty_cache(at::Device device);

/// Releases the pinned host memory that no tensor uses. Does nothing on the CPU.
void release_pinned_memory(at::Device device);

/// Selects whether new allocations use segments that grow, as
/// PYTORCH_CUDA_ALLOC_CONF=expandable_segments does. Batches of changing size then cause little
/// fragmentation. Does nothing on the CPU.
void set_expandable_segments(bool expandable);

/// Makes allocations fail that would raise the reserved memory above `bytes`, as on a smaller GPU.
/// VLMTRAIN_RESERVED_LIMIT_BYTES applies too. Memory that is already reserved stays. Does nothing
/// on the CPU.
void limit_reserved_bytes(at::Device device, int64_t bytes);

/// Reads and caches the device's total memory. limit_reserved_bytes() sets its limit as a fraction
/// of that size. PyTorch's allocator reads the size once at startup, and a virtual GPU may report
/// another size later. open_device() calls it. Does nothing on the CPU.
void cache_total_memory(at::Device device);

/// Returns why the device cannot even fill a tensor of 1 MiB, or nothing if it can. Synchronizes
/// the device.
std::optional<std::string> find_device_failure(at::Device device);

}  // namespace vlmtrain::memory

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace vlmtrain::memory {

/// Returns the GPU index that a device name denotes: 0 for `cuda`, N for `cuda:N`. Returns nothing
/// for any other name.
std::optional<int> parse_cuda_index(const std::string& name);

/// Opens the device `cpu`, `cuda`, `cuda:N`, or `auto` (CUDA if a usable GPU exists, else the CPU).
/// For CUDA, loads LibTorch's CUDA library from the directory of the CPU library; CPU runs do not
/// load it. Throws UserError: kUsage for an unknown name, kFailed with the reason if CUDA is not
/// usable.
at::Device open_device(const std::string& name);

/// Properties of a GPU, as its driver reports them.
struct DeviceDescription {
  std::string name;      ///< "NVIDIA H100 80GB HBM3"
  int architecture = 0;  ///< compute capability × 10
  int multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

/// Describes a GPU. Creates the CUDA context if it does not exist. REQUIRES: `device` is a CUDA
/// device from open_device().
DeviceDescription describe(at::Device device);

/// Returns the PCI bus id, such as "0000:17:00.0", which is equal for two names of one GPU.
/// REQUIRES: as describe().
std::string get_pci_bus_id(at::Device device);

/// Returns the GPU memory that the driver has free, for any process. REQUIRES: as describe().
int64_t free_bytes(at::Device device);

/// Returns the compute capability × 10 of a CUDA device. Costs one driver call.
int get_architecture(at::Device device);

/// Device memory as PyTorch's caching allocator counts it; zeros on the CPU.
struct DeviceMemory {
  int64_t allocated_peak_bytes = 0;  ///< since the last reset_peaks()
  int64_t reserved_peak_bytes = 0;   ///< since the last reset_peaks()
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
};

/// Returns the allocator's counters. Does not synchronize the device.
DeviceMemory device_memory(at::Device device);
/// Sets the peaks to the current values.
void reset_peaks(at::Device device);

/// Returns how often the allocator emptied its cache and retried an allocation.
int64_t allocation_retries(at::Device device);

/// Returns unused cached memory, including cuBLAS workspaces, to the driver; synchronizes the
/// device. On the CPU, returns unused memory to the system as far as malloc can.
void release_unused(at::Device device);

/// Releases the pinned host memory that no tensor uses. Does nothing on the CPU.
void release_pinned(at::Device device);

/// Selects whether new allocations use segments that grow, as
/// PYTORCH_CUDA_ALLOC_CONF=expandable_segments does. Batches of changing size then cause little
/// fragmentation. Does nothing on the CPU.
void set_expandable_segments(bool expandable);

/// Makes allocations fail that would raise the reserved memory above `bytes`, as on a smaller GPU.
/// Memory that is already reserved stays. Does nothing on the CPU.
void limit_reserved_bytes(at::Device device, int64_t bytes);

/// Reads the device size that limit_reserved_bytes() takes fractions of, and caches it. PyTorch's
/// allocator reads it once at startup, and a virtual GPU may report another size later. Does
/// nothing on the CPU.
void cache_device_size(at::Device device);

/// Returns why the device cannot even fill a tensor of 1 MiB, or nothing if it can. Synchronizes the
/// device.
std::optional<std::string> find_device_failure(at::Device device);

}  // namespace vlmtrain::memory

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace vlmtrain::memory {

/// The card that `name` means: 0 for `cuda`, N for `cuda:N`; nothing for any other name.
std::optional<int> parse_cuda_index(const std::string& name);

/// The device that `name` means: `cpu`, `cuda`, `cuda:N`, or `auto` (CUDA where there is a usable GPU, else the CPU).
/// For CUDA, LibTorch's CUDA library is loaded here, from beside the CPU library: a run on the CPU never pays for it.
/// Throws UserError: kUsage for an unknown name, kFailed where CUDA cannot be used, with the reason.
at::Device open_device(const std::string& name);

/// The card behind a CUDA device, as its driver describes it now.
struct DeviceDescription {
  std::string name;      ///< NVIDIA H100 80GB HBM3
  int architecture = 0;  ///< compute capability × 10
  int multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

/// REQUIRES: open_device() gave `device`, and it is not the CPU. Makes the CUDA context, if there is none yet.
DeviceDescription describe(at::Device device);

/// Where the card sits in its machine, as 0000:17:00.0: two names of one card have the same. REQUIRES as describe().
std::string get_pci_bus_id(at::Device device);

/// What the driver has left on the card, for any process. REQUIRES as describe().
int64_t free_bytes(at::Device device);

/// Compute capability × 10 of a CUDA device; costs no more than a call of the driver.
int get_architecture(at::Device device);

/// Device memory as PyTorch's caching allocator counts it; zeros on the CPU.
struct DeviceMemory {
  int64_t allocated_peak_bytes = 0;
  int64_t reserved_peak_bytes = 0;
  int64_t allocated_bytes = 0;  ///< now
  int64_t reserved_bytes = 0;
};

/// The peaks since the last call of reset_peaks. Does not wait for the device.
DeviceMemory device_memory(at::Device device);
void reset_peaks(at::Device device);

/// How often the allocator found no room, emptied its cache and tried again.
int64_t allocation_retries(at::Device device);

/// Gives everything back to the driver that no tensor uses, the workspaces of cuBLAS included; waits for the device. On
/// the CPU: to the kernel, as far as malloc can.
void release_unused(at::Device device);

/// Whether what is allocated from now on lies in segments that grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments). The
/// memory of batches of changing size then hardly fragments. Nothing on the CPU.
void set_expandable_segments(bool expandable);

/// From now on the allocator fails where it would reserve more than `bytes`, as if the card were smaller; what it has
/// reserved already stays. More than the card has: no limit but the card's. Nothing on the CPU.
void limit_reserved_bytes(at::Device device, int64_t bytes);

/// Gives back the pinned memory of the host that no tensor uses. Nothing on the CPU.
void release_pinned(at::Device device);

/// Why the device can do nothing at all any more, not even fill a tensor of a megabyte; nothing where it can. Waits for
/// the device.
std::optional<std::string> find_device_failure(at::Device device);

/// Asks the card for the size that limits are a share of, as the allocator does when it begins: a rehearsal's card says
/// another one later. Nothing on the CPU.
void cache_device_size(at::Device device);

}  // namespace vlmtrain::memory

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// The memory of the virtual GPU. Allocations get inaccessible host addresses, in pages of 2 MiB as
/// in real drivers, until the GPU is full. Addresses ascend as in real drivers, because PyTorch's
/// allocator breaks ties by address. Thread-safe.
class DeviceMemory {
 public:
  static constexpr uint64_t kPageBytes = uint64_t{2} << 20;

  /// Creates the memory that virtual_gpu() describes, or no memory if there is no device.
  DeviceMemory();

  /// Allocates memory with addresses (cudaMalloc). Returns its address, or nothing if it does not
  /// fit.
  std::optional<uint64_t> allocate(uint64_t bytes);
  /// Frees memory from allocate() (cudaFree). Returns false if `address` is not the start of any.
  bool free(uint64_t address);

  /// Creates memory without addresses (cuMemCreate). Returns its handle, or nothing if it does not
  /// fit.
  std::optional<uint64_t> create_pages(uint64_t bytes);
  /// Frees the memory once it is no longer mapped (cuMemRelease). Returns false if the handle is
  /// unknown or released already.
  bool release_pages(uint64_t handle);
  /// Maps the memory to reserved addresses (cuMemMap). Returns false if the handle is unknown or
  /// the address is mapped already.
  bool map_pages(uint64_t address, uint64_t handle);
  /// Ends a mapping (cuMemUnmap). Returns false if nothing is mapped to `address`.
  bool unmap_pages(uint64_t address);
  /// Reserves addresses without memory (cuMemAddressReserve). Returns the first one, or nothing if
  /// all are reserved.
  std::optional<uint64_t> reserve_addresses(uint64_t bytes);
  /// Frees reserved addresses (cuMemAddressFree). Returns false if `address` is not the start of a
  /// reservation.
  bool free_addresses(uint64_t address);

  /// Returns cudaDeviceProp::totalGlobalMem. That is VirtualGpu::reported_bytes until two address
  /// ranges are reserved, then the maximum of it and the capacity.
  ///
  /// PyTorch reserves 9/8 of this size for an expandable segment, and crashes if one tensor is
  /// larger than the segment. If the GPU reports its full capacity, it runs out of memory before
  /// that. The first segments of PyTorch's two pools have the size that they have on the configured
  /// GPU. PyTorch reserves a third segment only if one of them is too small.
  uint64_t reported_bytes() const;

  /// Returns an address for a __device__ variable of a module, or 0 if none is free. The variable's
  /// memory is part of the context, so it is not counted.
  uint64_t allocate_variable(uint64_t bytes);

  /// Adds memory to the context permanently, in whole pages. Returns false if it does not fit.
  bool grow_context(uint64_t bytes);

  /// Returns whether the pointer is a device address.
  bool contains(const void* pointer) const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t available_bytes() const;
  /// Copies the memory counters into `counters`, whose other members stay.
  void read(GpuCounters& counters) const;
  /// Resets the counts, and the peak to the used bytes.
  void reset_counters();

 private:
  /// A region of addresses and the ranges of it that are in use.
  struct AddressRegion {
    uint64_t first = 0;
    uint64_t end = 0;
    uint64_t next = 0;                         // no address from here on was ever used
    std::map<uint64_t, uint64_t> used_ranges;  // first address → bytes

    std::optional<uint64_t> allocate(uint64_t bytes);
    std::optional<uint64_t> find_free_address(uint64_t bytes) const;
  };
  /// Memory from create_pages(), freed once it is released and not mapped.
  struct PhysicalAllocation {
    uint64_t bytes = 0;
    int num_mappings = 0;
    bool is_released = false;
  };

  // The functions below require that mutex_ is held.

  /// Returns whether an allocation succeeds. Counts it as failed if not.
  bool try_fit_allocation(uint64_t bytes);
  void record_allocation(uint64_t bytes);
  void record_free(uint64_t bytes);
  void free_if_unused(std::map<uint64_t, PhysicalAllocation>::iterator allocation);

  mutable std::mutex mutex_;
  uint64_t capacity_bytes_ = 0;
  uint64_t first_address_ = 0;
  uint64_t end_address_ = 0;
  AddressRegion allocation_region_, reservation_region_, variable_region_;
  std::map<uint64_t, PhysicalAllocation> physical_allocations_;  // by handle
  std::map<uint64_t, uint64_t> mappings_;                        // address → handle
  uint64_t next_handle_ = 1;
  uint64_t used_bytes_ = 0;
  uint64_t peak_used_bytes_ = 0;
  uint64_t num_allocations_ = 0;
  uint64_t num_frees_ = 0;
  uint64_t num_failed_allocations_ = 0;
};

/// Returns the memory of this process's virtual GPU.
DeviceMemory& device_memory();

}  // namespace vlmtrain::vgpu

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// The memory of the virtual GPU: inaccessible addresses, allocated in pages of 2 MiB until the GPU is
/// full. Addresses ascend as in real drivers, because PyTorch's allocator breaks ties by address.
/// Thread-safe.
class DeviceMemory {
 public:
  static constexpr uint64_t kPageBytes = uint64_t{2} << 20;

  /// Creates the memory that virtual_gpu() describes; no memory without a device.
  DeviceMemory();

  /// Allocates memory with addresses (cudaMalloc). Returns nothing if it does not fit.
  std::optional<uint64_t> allocate(uint64_t bytes);
  bool free(uint64_t address);

  /// Creates memory without addresses (cuMemCreate), reserves addresses without memory
  /// (cuMemAddressReserve), and maps the one to the other. The bools are false for unknown handles
  /// and addresses.
  std::optional<uint64_t> create_pages(uint64_t bytes);
  bool release_pages(uint64_t handle);
  bool map(uint64_t address, uint64_t handle);
  bool unmap(uint64_t address);
  std::optional<uint64_t> reserve_addresses(uint64_t bytes);
  bool free_addresses(uint64_t address);

  /// Returns cudaDeviceProp::totalGlobalMem: the configured reported_bytes, and at least the capacity
  /// once two address ranges are reserved. PyTorch reserves 9/8 of it for an expandable segment and
  /// crashes on a null pointer beyond the segment's end if one tensor is larger. A GPU that reports
  /// its full capacity runs out of memory before that. The first segment of each of the two pools has
  /// the size it has on the configured GPU; a third is reserved only if one is too small.
  uint64_t reported_bytes() const;

  /// Returns an address for a __device__ variable of a module, whose memory is part of the context.
  uint64_t allocate_variable(uint64_t bytes);

  /// Adds memory to the context permanently, in whole pages. Returns false if it does not fit.
  bool grow_context(uint64_t bytes);

  /// Returns whether the pointer is a device address.
  bool contains(const void* pointer) const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t free_bytes() const;
  /// Copies the memory counters into `counters`.
  void read(Counters& counters) const;
  void reset_counters();

 private:
  /// A region of addresses and the ranges that are in use.
  struct AddressRegion {
    uint64_t first = 0;
    uint64_t end = 0;
    uint64_t next = 0;
    std::map<uint64_t, uint64_t> ranges;  // first address → bytes

    std::optional<uint64_t> allocate(uint64_t bytes);
    std::optional<uint64_t> find_gap(uint64_t bytes) const;
  };
  struct Pages {
    uint64_t bytes = 0;
    int mappings = 0;
    bool released = false;
  };

  bool fits(uint64_t bytes);
  void record_allocation(uint64_t bytes);
  void record_free(uint64_t bytes);
  void free_if_unused(std::map<uint64_t, Pages>::iterator pages);

  mutable std::mutex mutex_;
  uint64_t capacity_bytes_ = 0;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
  AddressRegion allocated_, reserved_, variables_;
  std::map<uint64_t, Pages> pages_;        // by handle
  std::map<uint64_t, uint64_t> mappings_;  // address → handle
  uint64_t next_handle_ = 1;
  uint64_t used_bytes_ = 0;
  uint64_t used_peak_bytes_ = 0;
  uint64_t allocations_ = 0;
  uint64_t frees_ = 0;
  uint64_t failed_allocations_ = 0;
};

/// Returns the memory of this process's virtual GPU.
DeviceMemory& device_memory();

}  // namespace vlmtrain::vgpu

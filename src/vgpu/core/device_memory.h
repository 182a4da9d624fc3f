#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// The card's memory: addresses that nothing can read or write, handed out in pages of 2 MiB, upwards, until the card
/// is full. PyTorch's allocator breaks ties by address, and upwards is what real drivers do. Thread-safe.
class DeviceMemory {
 public:
  static constexpr uint64_t kPageBytes = uint64_t{2} << 20;

  /// What virtual_gpu() has; a card without memory if there is none.
  DeviceMemory();

  /// Memory with addresses (cudaMalloc). Nothing if it does not fit.
  std::optional<uint64_t> allocate(uint64_t bytes);
  bool free(uint64_t address);

  /// Memory without addresses, and addresses without memory, to be joined by map (cuMemCreate, cuMemAddressReserve).
  std::optional<uint64_t> create_pages(uint64_t bytes);
  bool release_pages(uint64_t handle);
  bool map(uint64_t address, uint64_t handle);
  bool unmap(uint64_t address);
  std::optional<uint64_t> reserve_addresses(uint64_t bytes);
  bool free_addresses(uint64_t address);

  /// What cudaDeviceProp::totalGlobalMem says: the card's reported_bytes, and once two ranges of addresses are reserved
  /// at least what the card has. PyTorch reserves 9/8 of it for an expandable segment and steps past the segment's end,
  /// through a null pointer, where one tensor is larger; a card that has what it says is full before. The first segment
  /// of each of the two pools is as on the card that is meant; a further one is only asked for where that is too small.
  uint64_t reported_bytes() const;

  /// Room for a __device__ variable of a module, which counts as part of the context.
  uint64_t allocate_variable(uint64_t bytes);

  /// The context grows for good, by whole pages. False if it does not fit.
  bool grow_context(uint64_t bytes);

  bool contains(const void* pointer) const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t free_bytes() const;
  void read(Counters& counters) const;
  void reset_counters();

 private:
  /// Ranges of a region of addresses, by first address.
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

DeviceMemory& device_memory();

}  // namespace vlmtrain::vgpu

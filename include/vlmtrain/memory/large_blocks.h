#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace c10 {
struct Allocator;
}

namespace vlmtrain::memory {

/// Size from which an allocation counts as a large block. A smaller threshold would map and clear
/// pages for small tensors; a larger one would leave more freed memory resident.
inline constexpr int64_t kLargeBlockBytes = 1 << 20;

/// Makes malloc serve blocks of kLargeBlockBytes or more with mmap, and unmap them when they are
/// freed. By default malloc keeps blocks of up to 32 MiB on a heap that shrinks only at its end, so
/// gigabytes of freed activations stay resident below a few small live blocks. Affects the whole
/// process and later allocations only. Has no effect on another malloc (LD_PRELOAD).
void use_mmap_for_large_blocks();

/// Makes LibTorch's CPU allocator keep freed blocks of kLargeBlockBytes or more and reuse them.
/// Mapping new pages for each tensor makes CPU steps about half as long again. The peak of resident
/// memory remains the peak of the live tensors. Affects the whole process. Idempotent.
void enable_large_block_cache();

/// Returns unused cached blocks to the system. Thread-safe.
void release_large_block_cache();

/// Memory of the large-block cache.
struct LargeBlockStats {
  int64_t live_bytes = 0;
  int64_t cached_bytes = 0;  ///< used by no tensor
};
/// Returns the current memory of the cache. Thread-safe.
LargeBlockStats get_large_block_stats();

/// Returns the allocator that caches large blocks in front of LibTorch's CPU allocator. It wraps
/// the allocator that was current at the first call. Never freed.
c10::Allocator* get_large_block_allocator();

/// A cache of freed pages. Pages that come from the system are cleared and mapped at first use,
/// which takes longer than a typical tensor operation on them. Live and cached memory together
/// never exceed the peak of live memory, so the cache does not raise the peak resident memory.
/// Thread-safe.
class LargeBlockCache {
 public:
  LargeBlockCache() = default;
  ~LargeBlockCache();
  LargeBlockCache(const LargeBlockCache&) = delete;
  LargeBlockCache& operator=(const LargeBlockCache&) = delete;

  /// Returns uninitialized memory, `bytes` rounded up to whole pages. Returns null if the system
  /// has no memory even after the cache was released.
  void* allocate(size_t bytes);
  /// Returns whether `address` came from allocate() and was not deallocated.
  bool owns(void* address) const;
  /// Puts the memory into the cache. REQUIRES: owns(address).
  void deallocate(void* address);
  /// Returns all cached memory to the system.
  void release();

  /// Returns the bytes that are allocated.
  int64_t live_bytes() const;
  /// Returns the bytes that are free but not returned to the system.
  int64_t cached_bytes() const;

 private:
  using Address = std::byte*;

  // The functions below require that mutex_ is held. Sizes are multiples of the page size.
  Address allocate_from_cache(int64_t bytes);
  Address map_pages(int64_t bytes);
  void add_free_range(Address first, int64_t bytes);
  void remove_free_range(std::map<Address, int64_t>::iterator range);
  void trim_cache(int64_t max_cached_bytes);

  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<void*, int64_t> live_blocks_;
  std::map<Address, int64_t> free_ranges_;  // adjacent ranges are coalesced
  std::set<std::pair<int64_t, Address>> free_ranges_by_size_;
  int64_t live_bytes_ = 0;
  int64_t cached_bytes_ = 0;
  int64_t peak_bytes_ = 0;  // of live_bytes_
};

}  // namespace vlmtrain::memory

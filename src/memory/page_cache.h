#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace vlmtrain::memory {

/// A cache of freed pages. Pages that come from the system are cleared and mapped at first use,
/// which takes longer than a typical tensor operation on them. Live and cached memory together
/// never exceed the peak of live memory, so the cache does not raise the peak resident memory.
/// Thread-safe.
class PageCache {
 public:
  PageCache() = default;
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  /// Returns uninitialized memory in whole pages, or null if the system has none even after the
  /// cache was released.
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

  // REQUIRES: mutex_ is held.
  Address take_cached(int64_t bytes);
  Address map_pages(int64_t bytes);
  void add_free_range(Address first, int64_t bytes);
  void remove_free_range(std::map<Address, int64_t>::iterator range);
  void trim_cache(int64_t max_cached_bytes);

  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<void*, int64_t> live_;
  std::map<Address, int64_t> free_ranges_;  // adjacent ranges are coalesced
  std::set<std::pair<int64_t, Address>> free_ranges_by_size_;
  int64_t live_bytes_ = 0;
  int64_t cached_bytes_ = 0;
  int64_t peak_bytes_ = 0;  // of live_bytes_
};

}  // namespace vlmtrain::memory

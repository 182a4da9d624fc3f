#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace vlmtrain::memory {

/// Memory of the system in whole pages that is kept when it is freed, and taken again: a page that comes from the
/// system is cleared and mapped at its first use, which takes longer than what an operation on a tensor then does with
/// it. What lives and what is kept are together never more than what lived at once before, so the peak of resident
/// memory is that of what lives. Thread-safe.
class PageCache {
 public:
  PageCache() = default;
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  /// Null where the system has no more, even after all that is kept was given back. Contents are anything.
  void* allocate(size_t bytes);
  /// Whether the address is one of allocate() that was not put back.
  bool owns(void* address) const;
  /// REQUIRES: owns(address).
  void deallocate(void* address);
  /// Gives the system all that is kept.
  void release();

  int64_t live_bytes() const;
  int64_t cached_bytes() const;

 private:
  using Address = std::byte*;

  // All with the lock held.
  Address take_cached(int64_t bytes);
  Address map_pages(int64_t bytes);
  void add_free_range(Address first, int64_t bytes);
  void remove_free_range(std::map<Address, int64_t>::iterator range);
  void trim_cache(int64_t max_cached_bytes);

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<void*, int64_t> live_;
  std::map<Address, int64_t> free_ranges_;  // no two without a gap between
  std::set<std::pair<int64_t, Address>> free_ranges_by_size_;
  int64_t live_bytes_ = 0;
  int64_t cached_bytes_ = 0;
  int64_t peak_bytes_ = 0;  // of what lived at once
};

}  // namespace vlmtrain::memory

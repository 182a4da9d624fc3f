#include "memory/page_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

namespace {

constexpr int64_t kPage = 4096;
/// x86-64's transparent huge page.
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t round_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

PageCache::~PageCache() {
  release();
}

void* PageCache::allocate(size_t bytes) {
  const int64_t count = round_up(static_cast<int64_t>(bytes), kPage);
  const std::lock_guard lock(mutex_);
  Address address = take_cached(count);
  if (address == nullptr) {
    trim_cache(std::max<int64_t>(0, peak_bytes_ - live_bytes_ - count));
    address = map_pages(count);
    if (address == nullptr) {
      trim_cache(0);
      address = map_pages(count);
    }
  }
  if (address == nullptr) return nullptr;
  live_.emplace(address, count);
  live_bytes_ += count;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return address;
}

bool PageCache::owns(void* address) const {
  if (reinterpret_cast<uintptr_t>(address) % kPage != 0) return false;
  const std::lock_guard lock(mutex_);
  return live_.contains(address);
}

void PageCache::deallocate(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(address);
  VLMTRAIN_CHECK(it != live_.end(), "memory put back that was not taken");
  const int64_t bytes = it->second;
  live_.erase(it);
  live_bytes_ -= bytes;
  add_free_range(static_cast<Address>(address), bytes);
}

void PageCache::release() {
  const std::lock_guard lock(mutex_);
  trim_cache(0);
}

int64_t PageCache::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t PageCache::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

PageCache::Address PageCache::take_cached(int64_t bytes) {
  const auto best = free_ranges_by_size_.lower_bound({bytes, nullptr});
  if (best == free_ranges_by_size_.end()) return nullptr;
  const auto [size, address] = *best;
  remove_free_range(free_ranges_.find(address));
  if (size > bytes) add_free_range(address + bytes, size - bytes);
  return address;
}

/// Aligns large blocks to huge pages.
PageCache::Address PageCache::map_pages(int64_t bytes) {
  const int64_t padding = bytes >= 2 * kHugePage ? kHugePage : 0;
  const auto length = static_cast<size_t>(bytes + padding);
  void* const mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (padding == 0) return static_cast<Address>(mapped);
  const auto offset = round_up(reinterpret_cast<intptr_t>(mapped), kHugePage) - reinterpret_cast<intptr_t>(mapped);
  const Address address = static_cast<Address>(mapped) + offset;
  if (offset > 0) munmap(mapped, static_cast<size_t>(offset));
  if (offset < padding) munmap(address + bytes, static_cast<size_t>(padding - offset));
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // without support, the pages stay small
  return address;
}

void PageCache::add_free_range(Address first, int64_t bytes) {
  cached_bytes_ += bytes;
  auto next = free_ranges_.lower_bound(first);
  if (next != free_ranges_.end() && next->first == first + bytes) {
    bytes += next->second;
    free_ranges_by_size_.erase({next->second, next->first});
    next = free_ranges_.erase(next);
  }
  if (next != free_ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      first = previous->first;
      bytes += previous->second;
      free_ranges_by_size_.erase({previous->second, previous->first});
      free_ranges_.erase(previous);
    }
  }
  free_ranges_.emplace(first, bytes);
  free_ranges_by_size_.emplace(bytes, first);
}

void PageCache::remove_free_range(std::map<Address, int64_t>::iterator range) {
  cached_bytes_ -= range->second;
  free_ranges_by_size_.erase({range->second, range->first});
  free_ranges_.erase(range);
}

/// Unmaps the smallest ranges first, because they fit the fewest requests.
void PageCache::trim_cache(int64_t max_cached_bytes) {
  while (cached_bytes_ > max_cached_bytes) {
    const auto [size, address] = *free_ranges_by_size_.begin();
    const int64_t released = std::min(size, round_up(cached_bytes_ - max_cached_bytes, kPage));
    remove_free_range(free_ranges_.find(address));
    if (released < size) add_free_range(address + released, size - released);
    munmap(address, static_cast<size_t>(released));
  }
}

}  // namespace vlmtrain::memory

#include "memory/page_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

namespace {

constexpr int64_t kPage = 4096;
/// What x86-64 maps in one piece, where the system lets it ("transparent huge pages").
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t rounded_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

PageCache::~PageCache() {
  release();
}

void* PageCache::take(size_t bytes) {
  const int64_t count = rounded_up(static_cast<int64_t>(bytes), kPage);
  const std::lock_guard lock(mutex_);
  Address address = take_kept(count);
  if (address == nullptr) {
    release_down_to(std::max<int64_t>(0, peak_bytes_ - live_bytes_ - count));
    address = map(count);
    if (address == nullptr) {
      release_down_to(0);
      address = map(count);
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

void PageCache::put_back(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  VLMTRAIN_CHECK(found != live_.end(), "memory put back that was not taken");
  const int64_t bytes = found->second;
  live_.erase(found);
  live_bytes_ -= bytes;
  keep(static_cast<Address>(address), bytes);
}

void PageCache::release() {
  const std::lock_guard lock(mutex_);
  release_down_to(0);
}

int64_t PageCache::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t PageCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

PageCache::Address PageCache::take_kept(int64_t bytes) {
  const auto best = kept_by_size_.lower_bound({bytes, nullptr});
  if (best == kept_by_size_.end()) return nullptr;
  const auto [size, address] = *best;
  forget(kept_.find(address));
  if (size > bytes) keep(address + bytes, size - bytes);
  return address;
}

/// Large blocks begin where a huge page can.
PageCache::Address PageCache::map(int64_t bytes) {
  const int64_t spare = bytes >= 2 * kHugePage ? kHugePage : 0;
  const auto length = static_cast<size_t>(bytes + spare);
  void* const mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (spare == 0) return static_cast<Address>(mapped);
  const auto before = rounded_up(reinterpret_cast<intptr_t>(mapped), kHugePage) - reinterpret_cast<intptr_t>(mapped);
  const Address address = static_cast<Address>(mapped) + before;
  if (before > 0) munmap(mapped, static_cast<size_t>(before));
  if (before < spare) munmap(address + bytes, static_cast<size_t>(spare - before));
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // where it cannot be, pages are small
  return address;
}

void PageCache::keep(Address first, int64_t bytes) {
  kept_bytes_ += bytes;
  auto next = kept_.lower_bound(first);
  if (next != kept_.end() && next->first == first + bytes) {
    bytes += next->second;
    kept_by_size_.erase({next->second, next->first});
    next = kept_.erase(next);
  }
  if (next != kept_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      first = before->first;
      bytes += before->second;
      kept_by_size_.erase({before->second, before->first});
      kept_.erase(before);
    }
  }
  kept_.emplace(first, bytes);
  kept_by_size_.emplace(bytes, first);
}

void PageCache::forget(std::map<Address, int64_t>::iterator range) {
  kept_bytes_ -= range->second;
  kept_by_size_.erase({range->second, range->first});
  kept_.erase(range);
}

/// The smallest first: they serve the fewest.
void PageCache::release_down_to(int64_t most_kept_bytes) {
  while (kept_bytes_ > most_kept_bytes) {
    const auto [size, address] = *kept_by_size_.begin();
    const int64_t released = std::min(size, rounded_up(kept_bytes_ - most_kept_bytes, kPage));
    forget(kept_.find(address));
    if (released < size) keep(address + released, size - released);
    munmap(address, static_cast<size_t>(released));
  }
}

}  // namespace vlmtrain::memory

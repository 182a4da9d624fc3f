#include "vlmtrain/memory/large_blocks.h"

#include <malloc.h>
#include <sys/mman.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::memory {

namespace {

/// Size of a page on x86-64.
constexpr int64_t kPageBytes = 4096;
/// Size of a transparent huge page on x86-64.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t round_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

LargeBlockCache::~LargeBlockCache() {
  release();
}

void* LargeBlockCache::allocate(size_t bytes) {
  const int64_t rounded_bytes = round_up(static_cast<int64_t>(bytes), kPageBytes);
  const std::lock_guard lock(mutex_);
  Address address = allocate_from_cache(rounded_bytes);
  if (address == nullptr) {
    // Before new pages are mapped, the cache shrinks so that live and cached memory stay within the
    // peak.
    trim_cache(std::max<int64_t>(0, peak_bytes_ - live_bytes_ - rounded_bytes));
    address = map_pages(rounded_bytes);
    if (address == nullptr) {
      trim_cache(0);
      address = map_pages(rounded_bytes);
    }
  }
  if (address == nullptr) return nullptr;
  live_blocks_.emplace(address, rounded_bytes);
  live_bytes_ += rounded_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return address;
}

bool LargeBlockCache::owns(void* address) const {
  if (reinterpret_cast<uintptr_t>(address) % kPageBytes != 0) return false;
  const std::lock_guard lock(mutex_);
  return live_blocks_.contains(address);
}

void LargeBlockCache::deallocate(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = live_blocks_.find(address);
  VLMTRAIN_CHECK(it != live_blocks_.end(), "freed memory that was not allocated here");
  const int64_t bytes = it->second;
  live_blocks_.erase(it);
  live_bytes_ -= bytes;
  add_free_range(static_cast<Address>(address), bytes);
}

void LargeBlockCache::release() {
  const std::lock_guard lock(mutex_);
  trim_cache(0);
}

int64_t LargeBlockCache::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t LargeBlockCache::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

LargeBlockCache::Address LargeBlockCache::allocate_from_cache(int64_t bytes) {
  const auto best_fit_range = free_ranges_by_size_.lower_bound({bytes, nullptr});
  if (best_fit_range == free_ranges_by_size_.end()) return nullptr;
  const auto [size, address] = *best_fit_range;
  remove_free_range(free_ranges_.find(address));
  if (size > bytes) add_free_range(address + bytes, size - bytes);
  return address;
}

/// Aligns blocks of two huge pages or more to huge pages. The threshold was chosen without
/// measurement.
LargeBlockCache::Address LargeBlockCache::map_pages(int64_t bytes) {
  const int64_t padding = bytes >= 2 * kHugePageBytes ? kHugePageBytes : 0;
  const auto length = static_cast<size_t>(bytes + padding);
  void* const mapping = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  if (padding == 0) return static_cast<Address>(mapping);
  const auto offset =
      round_up(reinterpret_cast<intptr_t>(mapping), kHugePageBytes) - reinterpret_cast<intptr_t>(mapping);
  const Address address = static_cast<Address>(mapping) + offset;
  if (offset > 0) munmap(mapping, static_cast<size_t>(offset));
  if (offset < padding) munmap(address + bytes, static_cast<size_t>(padding - offset));
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // without support, the pages stay small
  return address;
}

void LargeBlockCache::add_free_range(Address first, int64_t bytes) {
  cached_bytes_ += bytes;
  auto next_range = free_ranges_.lower_bound(first);
  if (next_range != free_ranges_.end() && next_range->first == first + bytes) {
    bytes += next_range->second;
    free_ranges_by_size_.erase({next_range->second, next_range->first});
    next_range = free_ranges_.erase(next_range);
  }
  if (next_range != free_ranges_.begin()) {
    const auto previous_range = std::prev(next_range);
    if (previous_range->first + previous_range->second == first) {
      first = previous_range->first;
      bytes += previous_range->second;
      free_ranges_by_size_.erase({previous_range->second, previous_range->first});
      free_ranges_.erase(previous_range);
    }
  }
  free_ranges_.emplace(first, bytes);
  free_ranges_by_size_.emplace(bytes, first);
}

void LargeBlockCache::remove_free_range(std::map<Address, int64_t>::iterator range) {
  cached_bytes_ -= range->second;
  free_ranges_by_size_.erase({range->second, range->first});
  free_ranges_.erase(range);
}

/// Unmaps the smallest ranges first, because they fit the fewest requests.
void LargeBlockCache::trim_cache(int64_t max_cached_bytes) {
  while (cached_bytes_ > max_cached_bytes) {
    const auto [size, address] = *free_ranges_by_size_.begin();
    const int64_t released_bytes = std::min(size, round_up(cached_bytes_ - max_cached_bytes, kPageBytes));
    remove_free_range(free_ranges_.find(address));
    if (released_bytes < size) add_free_range(address + released_bytes, size - released_bytes);
    munmap(address, static_cast<size_t>(released_bytes));
  }
}

namespace {

/// An allocator that serves large blocks from a LargeBlockCache. The wrapped PyTorch allocator
/// serves small blocks, and reports the error if the system has no memory for a large one. Never
/// uninstalled.
class LargeBlockAllocator final : public c10::Allocator {
 public:
  explicit LargeBlockAllocator(c10::Allocator* wrapped) : wrapped_allocator_(wrapped) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (is_caching_ && bytes >= static_cast<size_t>(kLargeBlockBytes)) {
      if (void* const address = cache_.allocate(bytes)) {
        c10::profiledCPUMemoryReporter().New(address, bytes);  // as LibTorch's allocator does, for traces
        return {address, address, raw_deleter(), at::Device(at::kCPU)};
      }
    }
    c10::DataPtr memory = wrapped_allocator_->allocate(bytes);
    if (memory.get() != nullptr) {
      const bool is_deleter_replaced =
          memory.compare_exchange_deleter(wrapped_allocator_->raw_deleter(), raw_deleter());
      VLMTRAIN_CHECK(is_deleter_replaced, "the CPU allocator's memory has an unexpected deleter");
    }
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &LargeBlockAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    wrapped_allocator_->copy_data(destination, source, bytes);
  }

  void enable_cache() { is_caching_ = true; }
  LargeBlockCache& cache() { return cache_; }

 private:
  static void free(void* address);

  c10::Allocator* wrapped_allocator_;
  LargeBlockCache cache_;
  std::atomic<bool> is_caching_{false};
};

LargeBlockAllocator& get_large_block_allocator_instance() {
  static auto* const allocator = new LargeBlockAllocator(c10::GetAllocator(c10::DeviceType::CPU));  // never freed
  return *allocator;
}

void LargeBlockAllocator::free(void* address) {
  LargeBlockAllocator& allocator = get_large_block_allocator_instance();
  if (allocator.cache_.owns(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    allocator.cache_.deallocate(address);
  } else {
    allocator.wrapped_allocator_->raw_deleter()(address);
  }
}

}  // namespace

c10::Allocator* get_large_block_allocator() {
  return &get_large_block_allocator_instance();
}

void enable_large_block_cache() {
  install_watched_allocator();
  get_large_block_allocator_instance().enable_cache();
}

void release_large_block_cache() {
  get_large_block_allocator_instance().cache().release();
}

LargeBlockStats get_large_block_stats() {
  const LargeBlockCache& cache = get_large_block_allocator_instance().cache();
  return {.live_bytes = cache.live_bytes(), .cached_bytes = cache.cached_bytes()};
}

namespace {

/// Free memory that malloc keeps at the end of its heap. At glibc's default of 128 KiB, each step
/// would return memory to the system and request it again; a larger value keeps more unused memory.
constexpr int kTrimThresholdBytes = 32 << 20;
/// Maximum number of blocks that malloc serves with mmap. Linux allows a process 65,530 mappings
/// (vm.max_map_count); this leaves half of them for other uses.
constexpr int kMaxMmapBlocks = 32'000;

}  // namespace

void use_mmap_for_large_blocks() {
  // Setting the threshold also stops malloc from raising it when a block is freed.
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlockBytes));
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  mallopt(M_MMAP_MAX, kMaxMmapBlocks);
}

}  // namespace vlmtrain::memory

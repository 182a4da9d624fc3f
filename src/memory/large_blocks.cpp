#include "vlmtrain/memory/large_blocks.h"

#include <malloc.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "memory/page_cache.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::memory {

namespace {

/// Wraps PyTorch's allocator, which still serves small blocks, and large ones if the system has no
/// memory. Never uninstalled.
class LargeBlockAllocator final : public c10::Allocator {
 public:
  explicit LargeBlockAllocator(c10::Allocator* wrapped) : wrapped_(wrapped) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (is_caching_ && bytes >= static_cast<size_t>(kLargeBlockBytes)) {
      if (void* const address = pages_.allocate(bytes)) {
        c10::profiledCPUMemoryReporter().New(address, bytes);  // as LibTorch's allocator does, for traces
        return {address, address, raw_deleter(), at::Device(at::kCPU)};
      }
    }
    c10::DataPtr memory = wrapped_->allocate(bytes);
    if (memory.get() != nullptr) {
      const bool replaced = memory.compare_exchange_deleter(wrapped_->raw_deleter(), raw_deleter());
      VLMTRAIN_CHECK(replaced, "memory of the CPU allocator with another's deleter");
    }
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &LargeBlockAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    wrapped_->copy_data(destination, source, bytes);
  }

  void enable_cache() { is_caching_ = true; }
  PageCache& pages() { return pages_; }

 private:
  static void free(void* address);

  c10::Allocator* wrapped_;
  PageCache pages_;
  std::atomic<bool> is_caching_{false};
};

LargeBlockAllocator& large_block_allocator_instance() {
  static auto* const allocator = new LargeBlockAllocator(c10::GetAllocator(c10::DeviceType::CPU));  // never freed
  return *allocator;
}

void LargeBlockAllocator::free(void* address) {
  LargeBlockAllocator& allocator = large_block_allocator_instance();
  if (allocator.pages_.owns(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    allocator.pages_.deallocate(address);
  } else {
    allocator.wrapped_->raw_deleter()(address);
  }
}

}  // namespace

c10::Allocator* large_block_allocator() {
  return &large_block_allocator_instance();
}

void enable_large_block_cache() {
  install_watched_allocator();
  large_block_allocator_instance().enable_cache();
}

void release_large_block_cache() {
  large_block_allocator_instance().pages().release();
}

LargeBlockStats get_large_block_stats() {
  const PageCache& pages = large_block_allocator_instance().pages();
  return {.live_bytes = pages.live_bytes(), .cached_bytes = pages.cached_bytes()};
}

namespace {

/// Free memory to keep at the end of malloc's heap. With glibc's default of 128 KiB each step would
/// return it and take it again; a larger value keeps more unused memory.
constexpr int kTrimThresholdBytes = 32 << 20;
/// Linux allows a process 65,530 mappings (vm.max_map_count); half of them remain for others.
constexpr int kMaxMmapBlocks = 32'000;

}  // namespace

void use_mmap_for_large_blocks() {
  // Setting the threshold also stops malloc from raising it when a block is freed.
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlockBytes));
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  mallopt(M_MMAP_MAX, kMaxMmapBlocks);
}

}  // namespace vlmtrain::memory

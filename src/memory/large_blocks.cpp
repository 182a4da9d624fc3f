#include "vlmtrain/memory/large_blocks.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "memory/large_block_allocator.h"
#include "memory/page_cache.h"
#include "memory/watched_allocator.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/host_malloc.h"

namespace vlmtrain::memory {

namespace {

/// In front of PyTorch's allocator, which small blocks still come from, and large ones where the system has none. It
/// stays once it was put there.
class LargeBlockAllocator final : public c10::Allocator {
 public:
  explicit LargeBlockAllocator(c10::Allocator* real) : real_(real) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (keeps_ && bytes >= static_cast<size_t>(kLargeBlockBytes)) {
      if (void* const address = pages_.take(bytes)) {
        c10::profiledCPUMemoryReporter().New(address, bytes);  // as LibTorch's own does, for traces
        return {address, address, raw_deleter(), at::Device(at::kCPU)};
      }
    }
    c10::DataPtr memory = real_->allocate(bytes);
    if (memory.get() != nullptr) {
      const bool replaced = memory.compare_exchange_deleter(real_->raw_deleter(), raw_deleter());
      VLMTRAIN_CHECK(replaced, "memory of the CPU allocator with another's deleter");
    }
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &LargeBlockAllocator::free; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    real_->copy_data(destination, source, bytes);
  }

  void keep() { keeps_ = true; }
  PageCache& pages() { return pages_; }

 private:
  static void free(void* address);

  c10::Allocator* real_;
  PageCache pages_;
  std::atomic<bool> keeps_{false};
};

LargeBlockAllocator& large_blocks_in_front() {
  static auto* const allocator = new LargeBlockAllocator(c10::GetAllocator(c10::DeviceType::CPU));  // never freed
  return *allocator;
}

void LargeBlockAllocator::free(void* address) {
  LargeBlockAllocator& self = large_blocks_in_front();
  if (self.pages_.owns(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    self.pages_.put_back(address);
  } else {
    self.real_->raw_deleter()(address);
  }
}

}  // namespace

c10::Allocator* large_block_allocator() {
  return &large_blocks_in_front();
}

void keep_large_blocks() {
  put_watched_allocator_in_front();
  large_blocks_in_front().keep();
}

void release_large_blocks() {
  large_blocks_in_front().pages().release();
}

LargeBlocks large_blocks() {
  const PageCache& pages = large_blocks_in_front().pages();
  return {.live_bytes = pages.live_bytes(), .kept_bytes = pages.kept_bytes()};
}

}  // namespace vlmtrain::memory

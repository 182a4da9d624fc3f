#include "vlmtrain/memory/meta_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/host_malloc.h"

namespace vlmtrain::memory {

namespace {

/// What an allocation of a tensor on the CPU begins at a multiple of.
constexpr int64_t kTensorAlignment = 64;

struct MetaCount {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t small_live_bytes = 0;
  int64_t small_peak_bytes = 0;

  void add(int64_t bytes) {
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
    if (bytes >= kLargeBlockBytes) return;
    small_live_bytes += bytes;
    small_peak_bytes = std::max(small_peak_bytes, small_live_bytes);
  }

  void subtract(int64_t bytes) {
    live_bytes -= bytes;
    if (bytes < kLargeBlockBytes) small_live_bytes -= bytes;
  }
};

/// Of the MetaMemory that lives; null without one.
MetaCount* meta_count = nullptr;

struct MetaBlock {
  void* address;
  int64_t bytes;
};

/// Gives out addresses that nothing lies at.
class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(at::kMeta);
    if (meta_count == nullptr || bytes == 0) return {nullptr, device};
    const auto rounded = (static_cast<int64_t>(bytes) + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    // Not null, each its own: LibTorch finds out by addresses which tensors overlap.
    auto block = std::make_unique<MetaBlock>(MetaBlock{reinterpret_cast<void*>(next_address_), rounded});
    next_address_ += rounded;
    meta_count->add(rounded);
    report(*block, rounded);
    void* const address = block->address;
    return {address, block.release(), &CountingMetaAllocator::free, device};
  }

  void copy_data(void* /*destination*/, const void* /*source*/, size_t /*bytes*/) const override {}

 private:
  static void report(const MetaBlock& block, int64_t bytes) {
    const auto live = static_cast<size_t>(meta_count->live_bytes);
    c10::reportMemoryUsageToProfiler(block.address, bytes, live, live, at::Device(at::kMeta));
  }

  static void free(void* context) {
    const std::unique_ptr<MetaBlock> block(static_cast<MetaBlock*>(context));
    if (meta_count == nullptr) return;
    meta_count->subtract(block->bytes);
    report(*block, -block->bytes);
  }

  int64_t next_address_ = kTensorAlignment;
};

/// It stays once it was put there: what it gave out may outlive any count.
void count_from_now_on() {
  static CountingMetaAllocator* const allocator = [] {
    auto* const made = new CountingMetaAllocator;  // never freed
    constexpr uint8_t kInFront = 255;
    c10::SetAllocator(c10::DeviceType::Meta, made, kInFront);
    return made;
  }();
  static_cast<void>(allocator);
}

}  // namespace

MetaMemory::MetaMemory() {
  VLMTRAIN_CHECK(meta_count == nullptr, "the meta device's memory is counted already");
  count_from_now_on();
  meta_count = new MetaCount;
}

MetaMemory::~MetaMemory() {
  delete meta_count;
  meta_count = nullptr;
}

int64_t MetaMemory::live_bytes() const {
  return meta_count->live_bytes;
}

int64_t MetaMemory::peak_bytes() const {
  return meta_count->peak_bytes;
}

int64_t MetaMemory::small_live_bytes() const {
  return meta_count->small_live_bytes;
}

int64_t MetaMemory::small_peak_bytes() const {
  return meta_count->small_peak_bytes;
}

void MetaMemory::reset_peak() {
  meta_count->peak_bytes = meta_count->live_bytes;
  meta_count->small_peak_bytes = meta_count->small_live_bytes;
}

}  // namespace vlmtrain::memory

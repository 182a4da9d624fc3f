#include "vlmtrain/memory/meta_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/large_blocks.h"

namespace vlmtrain::memory {

namespace {

/// Alignment of LibTorch's CPU allocations.
constexpr int64_t kTensorAlignmentBytes = 64;

struct MetaMemoryStats {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t small_tensor_live_bytes = 0;
  int64_t small_tensor_peak_bytes = 0;

  void add(int64_t bytes) {
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
    if (bytes >= kLargeBlockBytes) return;
    small_tensor_live_bytes += bytes;
    small_tensor_peak_bytes = std::max(small_tensor_peak_bytes, small_tensor_live_bytes);
  }

  void subtract(int64_t bytes) {
    live_bytes -= bytes;
    if (bytes < kLargeBlockBytes) small_tensor_live_bytes -= bytes;
  }
};

/// The counts of the MetaMemoryTracker; null if none exists.
MetaMemoryStats* active_meta_stats = nullptr;

struct MetaBlock {
  void* address;
  int64_t bytes;
};

/// An allocator of unique addresses without memory. Without a MetaMemoryTracker it returns null, as
/// LibTorch's own meta allocator does.
class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(at::kMeta);
    if (active_meta_stats == nullptr || bytes == 0) return {nullptr, device};
    const auto rounded_bytes =
        (static_cast<int64_t>(bytes) + kTensorAlignmentBytes - 1) / kTensorAlignmentBytes * kTensorAlignmentBytes;
    // Nonnull and unique: LibTorch detects overlapping tensors by address.
    auto block = std::make_unique<MetaBlock>(MetaBlock{reinterpret_cast<void*>(next_address_), rounded_bytes});
    next_address_ += rounded_bytes;
    active_meta_stats->add(rounded_bytes);
    report_to_profiler(*block, rounded_bytes);
    void* const address = block->address;
    return {address, block.release(), &CountingMetaAllocator::free, device};
  }

  void copy_data(void* /*destination*/, const void* /*source*/, size_t /*bytes*/) const override {}

 private:
  static void report_to_profiler(const MetaBlock& block, int64_t bytes) {
    const auto live_bytes = static_cast<size_t>(active_meta_stats->live_bytes);
    c10::reportMemoryUsageToProfiler(block.address, bytes, live_bytes, live_bytes, at::Device(at::kMeta));
  }

  static void free(void* context) {
    const std::unique_ptr<MetaBlock> block(static_cast<MetaBlock*>(context));
    if (active_meta_stats == nullptr) return;
    active_meta_stats->subtract(block->bytes);
    report_to_profiler(*block, -block->bytes);
  }

  int64_t next_address_ = kTensorAlignmentBytes;
};

/// The allocator is never uninstalled, because its allocations may outlive any tracker.
void install_counting_allocator() {
  static CountingMetaAllocator* const allocator = [] {
    auto* const instance = new CountingMetaAllocator;  // never freed
    constexpr uint8_t kHighestPriority = 255;
    c10::SetAllocator(c10::DeviceType::Meta, instance, kHighestPriority);
    return instance;
  }();
  static_cast<void>(allocator);
}

}  // namespace

MetaMemoryTracker::MetaMemoryTracker() {
  VLMTRAIN_CHECK(active_meta_stats == nullptr, "the meta device's memory is tracked already");
  install_counting_allocator();
  active_meta_stats = new MetaMemoryStats;
}

MetaMemoryTracker::~MetaMemoryTracker() {
  delete active_meta_stats;
  active_meta_stats = nullptr;
}

int64_t MetaMemoryTracker::live_bytes() const {
  return active_meta_stats->live_bytes;
}

int64_t MetaMemoryTracker::peak_bytes() const {
  return active_meta_stats->peak_bytes;
}

int64_t MetaMemoryTracker::small_tensor_live_bytes() const {
  return active_meta_stats->small_tensor_live_bytes;
}

int64_t MetaMemoryTracker::small_tensor_peak_bytes() const {
  return active_meta_stats->small_tensor_peak_bytes;
}

void MetaMemoryTracker::reset_peak() {
  active_meta_stats->peak_bytes = active_meta_stats->live_bytes;
  active_meta_stats->small_tensor_peak_bytes = active_meta_stats->small_tensor_live_bytes;
}

}  // namespace vlmtrain::memory

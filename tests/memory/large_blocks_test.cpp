#include "vlmtrain/memory/large_blocks.h"

#include <ATen/ops/full.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::memory {

namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

at::Tensor make_filled(int64_t bytes) {
  return at::full({bytes}, 1, at::kByte);
}

/// A step's tensors: many sizes, others in each step. The most bytes that lived at once.
int64_t run_steps() {
  int64_t peak = 0;
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t size = (4 + (i * 7 + step) % 5) * kMebibyte + step * 40'000;
      const at::Tensor temporary = make_filled(size / 2);
      tensors.push_back(make_filled(size));
      bytes += size;
      peak = std::max(peak, bytes + size / 2);
    }
  }
  return peak;
}

/// In a process of its own, whose allocator stays as it becomes. Exits with the number of what is wrong.
[[noreturn]] void check_in_this_process() {
  make_filled(8 * kMebibyte);
  if (get_large_block_stats().live_bytes != 0 || get_large_block_stats().cached_bytes != 0) std::_Exit(1);
  const at::Tensor earlier = make_filled(8 * kMebibyte);
  HostBudget budget;
  enable_large_block_cache();
  {
    const at::Tensor large = make_filled(8 * kMebibyte), small = make_filled(1000);
    if (get_large_block_stats().live_bytes != 8 * kMebibyte) std::_Exit(2);
    if (budget.live_bytes() != 8 * kMebibyte + 1000) std::_Exit(3);
  }
  if (budget.live_bytes() != 0 || get_large_block_stats().live_bytes != 0) std::_Exit(4);
  if (get_large_block_stats().cached_bytes != 8 * kMebibyte) std::_Exit(5);
  void* const raw = c10::GetAllocator(c10::DeviceType::CPU)->raw_allocate(4 * kMebibyte);  // as oneDNN takes memory
  if (get_large_block_stats().live_bytes != 4 * kMebibyte) std::_Exit(6);
  c10::GetAllocator(c10::DeviceType::CPU)->raw_deallocate(raw);
  release_large_block_cache();
  if (get_large_block_stats().cached_bytes != 0) std::_Exit(7);

  const int64_t before = host_bytes();
  const int64_t peak = run_steps();
  if (host_peak_bytes() - before > peak + 4 * kMebibyte) std::_Exit(8);
  if (get_large_block_stats().cached_bytes < peak / 2) std::_Exit(9);
  std::_Exit(0);
}

TEST(LargeBlocksTest, CachesFreedBlocksWithoutRaisingPeak) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(check_in_this_process(), testing::ExitedWithCode(0), "");
}

}  // namespace

namespace {

/// Blocks as activations are, with small ones in between that live on. What stays resident once they are freed.
int64_t measure_resident_growth() {
  constexpr size_t kLarge = 8 << 20, kSmall = 4096, kBlocks = 40;
  std::vector<void*> large, small;
  const int64_t before = host_bytes();
  for (size_t i = 0; i < kBlocks; ++i) {
    large.push_back(std::malloc(kLarge));
    std::memset(large.back(), 1, kLarge);
    small.push_back(std::malloc(kSmall));
    std::memset(small.back(), 1, kSmall);
  }
  for (void* block : large) std::free(block);
  const int64_t growth = host_bytes() - before;
  for (void* block : small) std::free(block);
  return growth;
}

/// In a process of its own, which has malloc as it starts and settings that do not last.
TEST(HostMallocTest, FreedBlocksReturnToSystem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto measure = [] {
    // Malloc learns from a block that is freed to keep those of its size.
    void* volatile block = std::malloc(16 << 20);  // volatile: or no memory is asked for
    std::free(block);
    const int64_t default_growth = measure_resident_growth();
    use_mmap_for_large_blocks();
    const int64_t growth = measure_resident_growth();
    // The first is the default, for which the setting is there.
    std::_Exit(default_growth > 200'000'000 && growth < 10'000'000 ? 0 : 1);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}

}  // namespace

}  // namespace vlmtrain::memory

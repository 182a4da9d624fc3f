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

/// Allocates the tensors of some steps, with sizes that differ per step. Returns the maximum of the
/// live bytes.
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

/// Runs in a subprocess, because the allocator stays installed. Exits with the number of the failed
/// check.
[[noreturn]] void check_in_this_process() {
  make_filled(8 * kMebibyte);
  if (get_large_block_stats().live_bytes != 0 || get_large_block_stats().cached_bytes != 0) std::_Exit(1);
  const at::Tensor earlier = make_filled(8 * kMebibyte);
  HostMemoryBudget budget;
  enable_large_block_cache();
  {
    const at::Tensor large = make_filled(8 * kMebibyte), small = make_filled(1000);
    if (get_large_block_stats().live_bytes != 8 * kMebibyte) std::_Exit(2);
    if (budget.live_bytes() != 8 * kMebibyte + 1000) std::_Exit(3);
  }
  if (budget.live_bytes() != 0 || get_large_block_stats().live_bytes != 0) std::_Exit(4);
  if (get_large_block_stats().cached_bytes != 8 * kMebibyte) std::_Exit(5);
  void* const raw = c10::GetAllocator(c10::DeviceType::CPU)->raw_allocate(4 * kMebibyte);  // as oneDNN allocates memory
  if (get_large_block_stats().live_bytes != 4 * kMebibyte) std::_Exit(6);
  c10::GetAllocator(c10::DeviceType::CPU)->raw_deallocate(raw);
  release_large_block_cache();
  if (get_large_block_stats().cached_bytes != 0) std::_Exit(7);

  const int64_t before = get_resident_bytes();
  const int64_t peak = run_steps();
  if (get_peak_resident_bytes() - before > peak + 4 * kMebibyte) std::_Exit(8);
  if (get_large_block_stats().cached_bytes < peak / 2) std::_Exit(9);
  std::_Exit(0);
}

TEST(LargeBlocksTest, CachesFreedBlocksWithoutRaisingPeak) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(check_in_this_process(), testing::ExitedWithCode(0), "");
}

/// Returns the memory that stays resident after blocks like activations, with small live blocks in
/// between, are freed.
int64_t measure_resident_growth() {
  constexpr size_t kLarge = 8 << 20, kSmall = 4096, kBlocks = 40;
  std::vector<void*> large, small;
  const int64_t before = get_resident_bytes();
  for (size_t i = 0; i < kBlocks; ++i) {
    large.push_back(std::malloc(kLarge));
    std::memset(large.back(), 1, kLarge);
    small.push_back(std::malloc(kSmall));
    std::memset(small.back(), 1, kSmall);
  }
  for (void* block : large) std::free(block);
  const int64_t growth = get_resident_bytes() - before;
  for (void* block : small) std::free(block);
  return growth;
}

/// Runs in a subprocess with malloc's initial settings.
TEST(HostMallocTest, FreedBlocksReturnToSystem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto measure = [] {
    // malloc adapts its threshold to the size of a freed block.
    void* volatile block = std::malloc(16 << 20);  // volatile, or the compiler removes the allocation
    std::free(block);
    const int64_t default_growth = measure_resident_growth();
    use_mmap_for_large_blocks();
    const int64_t growth = measure_resident_growth();
    // The first is the default behavior, which the setting improves.
    std::_Exit(default_growth > 200'000'000 && growth < 10'000'000 ? 0 : 1);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}

}  // namespace

}  // namespace vlmtrain::memory

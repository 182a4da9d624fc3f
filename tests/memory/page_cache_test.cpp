#include <sys/resource.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/memory/large_blocks.h"

namespace vlmtrain::memory {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

std::byte* allocate(LargeBlockCache& cache, int64_t bytes) {
  return static_cast<std::byte*>(cache.allocate(static_cast<size_t>(bytes)));
}

TEST(PageCacheTest, ReusesFreedMemory) {
  LargeBlockCache cache;
  std::byte* const block = allocate(cache, 8 * kMebibyte);
  EXPECT_EQ(cache.live_bytes(), 8 * kMebibyte);
  cache.deallocate(block);
  EXPECT_EQ(cache.live_bytes(), 0);
  EXPECT_EQ(cache.cached_bytes(), 8 * kMebibyte);
  EXPECT_EQ(allocate(cache, 8 * kMebibyte), block);
  EXPECT_EQ(cache.cached_bytes(), 0);
  cache.deallocate(block);
}

TEST(PageCacheTest, CoalescesFreedRanges) {
  LargeBlockCache cache;
  std::byte* const whole = allocate(cache, 12 * kMebibyte);
  cache.deallocate(whole);
  std::vector<std::byte*> parts(3);
  for (auto& part : parts) part = allocate(cache, 4 * kMebibyte);
  EXPECT_EQ(cache.cached_bytes(), 0);
  for (const size_t i : {0, 2, 1}) cache.deallocate(parts[i]);
  EXPECT_EQ(allocate(cache, 12 * kMebibyte), whole);
  cache.deallocate(whole);
}

TEST(PageCacheTest, UsesBestFit) {
  LargeBlockCache cache;
  std::byte* const large = allocate(cache, 16 * kMebibyte);
  std::byte* const small = allocate(cache, 2 * kMebibyte);
  std::byte* const separator = allocate(cache, kMebibyte);
  cache.deallocate(large);
  cache.deallocate(small);
  EXPECT_EQ(allocate(cache, 2 * kMebibyte), small);
  EXPECT_EQ(allocate(cache, 16 * kMebibyte), large);
  for (std::byte* block : {large, small, separator}) cache.deallocate(block);
}

TEST(PageCacheTest, CacheNeverExceedsPeak) {
  LargeBlockCache cache;
  std::mt19937 random(1);
  std::vector<std::pair<std::byte*, int64_t>> blocks;
  int64_t live = 0, peak = 0;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() < 20 && random() % 2 == 0) {
      const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 2000);
      blocks.emplace_back(allocate(cache, bytes), bytes);
      ASSERT_NE(blocks.back().first, nullptr);
      std::memset(blocks.back().first, static_cast<int>(bytes / 4096 % 251),
                  64);  // a value of the block's own, which the next loop checks
      live += bytes;
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [address, bytes] = blocks.back();
      EXPECT_EQ(address[63], static_cast<std::byte>(bytes / 4096 % 251));
      cache.deallocate(address);
      blocks.pop_back();
      live -= bytes;
    }
    peak = std::max(peak, live);
    ASSERT_EQ(cache.live_bytes(), live);
    ASSERT_LE(cache.live_bytes() + cache.cached_bytes(), peak);
  }
  for (const auto& [address, bytes] : blocks) cache.deallocate(address);
}

TEST(PageCacheTest, ReleasedMemoryIsNotResident) {
  LargeBlockCache cache;
  const int64_t before = get_resident_bytes();
  std::byte* const block = allocate(cache, 64 * kMebibyte);
  std::memset(block, 1, 64 * kMebibyte);
  cache.deallocate(block);
  EXPECT_GT(get_resident_bytes() - before, 60 * kMebibyte);
  cache.release();
  EXPECT_EQ(cache.cached_bytes(), 0);
  EXPECT_LT(get_resident_bytes() - before, 4 * kMebibyte);
}

TEST(PageCacheTest, RejectsForeignPointers) {
  LargeBlockCache cache;
  void* const pages = std::aligned_alloc(4096, 8192);
  EXPECT_FALSE(cache.owns(pages));
  std::free(pages);
  int64_t number = 0;
  EXPECT_FALSE(cache.owns(&number));
  EXPECT_FALSE(cache.owns(nullptr));
}

TEST(PageCacheTest, ThreadsGetDistinctMemory) {
  LargeBlockCache cache;
  std::vector<std::thread> threads;
  std::atomic<int> num_shared{0};
  for (int number = 1; number <= 4; ++number) {
    threads.emplace_back([&cache, &num_shared, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      for (int i = 0; i < 300; ++i) {
        const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 64);
        std::byte* const block = allocate(cache, bytes);
        std::memset(block, number, static_cast<size_t>(bytes));
        std::this_thread::yield();
        for (int64_t at = 0; at < bytes; at += 1024) {
          if (block[at] != static_cast<std::byte>(number)) ++num_shared;
        }
        cache.deallocate(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_shared, 0);
  EXPECT_EQ(cache.live_bytes(), 0);
}

/// Runs in a subprocess with limited address space: the cache is released before allocation fails.
TEST(PageCacheTest, ReleasesCacheBeforeFailing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto measure = [] {
    LargeBlockCache cache;
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(allocate(cache, 4 * kMebibyte));
    for (size_t i = 0; i < blocks.size(); i += 2) cache.deallocate(blocks[i]);  // no hole is large enough
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = static_cast<rlim_t>(address_space_bytes() + 32 * kMebibyte);
    setrlimit(RLIMIT_AS, &limit);
    const bool fits = allocate(cache, 100 * kMebibyte) != nullptr;
    const bool too_large = allocate(cache, 400 * kMebibyte) == nullptr;
    std::_Exit(fits && too_large ? 0 : 1);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vlmtrain::memory

#include "memory/page_cache.h"

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

#include "vlmtrain/memory/host.h"

namespace vlmtrain::memory {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

std::byte* take(PageCache& cache, int64_t bytes) {
  return static_cast<std::byte*>(cache.take(static_cast<size_t>(bytes)));
}

TEST(PageCacheTest, TakesWhatWasPutBack) {
  PageCache cache;
  std::byte* const block = take(cache, 8 * kMebibyte);
  EXPECT_EQ(cache.live_bytes(), 8 * kMebibyte);
  cache.put_back(block);
  EXPECT_EQ(cache.live_bytes(), 0);
  EXPECT_EQ(cache.kept_bytes(), 8 * kMebibyte);
  EXPECT_EQ(take(cache, 8 * kMebibyte), block);
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.put_back(block);
}

TEST(PageCacheTest, PartsOfARangeAreOneAgainWhateverTheOrder) {
  PageCache cache;
  std::byte* const whole = take(cache, 12 * kMebibyte);
  cache.put_back(whole);
  std::vector<std::byte*> parts(3);
  for (auto& part : parts) part = take(cache, 4 * kMebibyte);
  EXPECT_EQ(cache.kept_bytes(), 0);
  for (const size_t i : {0, 2, 1}) cache.put_back(parts[i]);
  EXPECT_EQ(take(cache, 12 * kMebibyte), whole);
  cache.put_back(whole);
}

TEST(PageCacheTest, TakesTheTightestRange) {
  PageCache cache;
  std::byte* const large = take(cache, 16 * kMebibyte);
  std::byte* const small = take(cache, 2 * kMebibyte);
  std::byte* const between = take(cache, kMebibyte);
  cache.put_back(large);
  cache.put_back(small);
  EXPECT_EQ(take(cache, 2 * kMebibyte), small);
  EXPECT_EQ(take(cache, 16 * kMebibyte), large);
  for (std::byte* block : {large, small, between}) cache.put_back(block);
}

TEST(PageCacheTest, NoMoreIsKeptThanLivedAtOnce) {
  PageCache cache;
  std::mt19937 random(1);
  std::vector<std::pair<std::byte*, int64_t>> blocks;
  int64_t live = 0, peak = 0;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() < 20 && random() % 2 == 0) {
      const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 2000);
      blocks.emplace_back(take(cache, bytes), bytes);
      ASSERT_NE(blocks.back().first, nullptr);
      std::memset(blocks.back().first, static_cast<int>(bytes / 4096 % 251), 64);  // its own, as the next loop sees
      live += bytes;
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [address, bytes] = blocks.back();
      EXPECT_EQ(address[63], static_cast<std::byte>(bytes / 4096 % 251));
      cache.put_back(address);
      blocks.pop_back();
      live -= bytes;
    }
    peak = std::max(peak, live);
    ASSERT_EQ(cache.live_bytes(), live);
    ASSERT_LE(cache.live_bytes() + cache.kept_bytes(), peak);
  }
  for (const auto& [address, bytes] : blocks) cache.put_back(address);
}

TEST(PageCacheTest, WhatIsReleasedIsNotResident) {
  PageCache cache;
  const int64_t before = host_bytes();
  std::byte* const block = take(cache, 64 * kMebibyte);
  std::memset(block, 1, 64 * kMebibyte);
  cache.put_back(block);
  EXPECT_GT(host_bytes() - before, 60 * kMebibyte);
  cache.release();
  EXPECT_EQ(cache.kept_bytes(), 0);
  EXPECT_LT(host_bytes() - before, 4 * kMebibyte);
}

TEST(PageCacheTest, KnowsWhatIsNotItsOwn) {
  PageCache cache;
  void* const pages = std::aligned_alloc(4096, 8192);
  EXPECT_FALSE(cache.owns(pages));
  std::free(pages);
  int64_t number = 0;
  EXPECT_FALSE(cache.owns(&number));
  EXPECT_FALSE(cache.owns(nullptr));
}

TEST(PageCacheTest, ThreadsDoNotGetTheSameMemory) {
  PageCache cache;
  std::vector<std::thread> threads;
  std::atomic<int> shared{0};
  for (int number = 1; number <= 4; ++number) {
    threads.emplace_back([&cache, &shared, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      for (int i = 0; i < 300; ++i) {
        const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 64);
        std::byte* const block = take(cache, bytes);
        std::memset(block, number, static_cast<size_t>(bytes));
        std::this_thread::yield();
        for (int64_t at = 0; at < bytes; at += 1024) {
          if (block[at] != static_cast<std::byte>(number)) ++shared;
        }
        cache.put_back(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(shared, 0);
  EXPECT_EQ(cache.live_bytes(), 0);
}

/// In a process of its own, whose address space is limited: what is kept makes room, then there is none.
TEST(PageCacheTest, GivesUpWhatItKeepsBeforeItFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto measure = [] {
    PageCache cache;
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(take(cache, 4 * kMebibyte));
    for (size_t i = 0; i < blocks.size(); i += 2) cache.put_back(blocks[i]);  // holes, none of which is large enough
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = static_cast<rlim_t>(address_space_bytes() + 32 * kMebibyte);
    setrlimit(RLIMIT_AS, &limit);
    const bool fits = take(cache, 100 * kMebibyte) != nullptr;
    const bool too_large = take(cache, 400 * kMebibyte) == nullptr;
    std::_Exit(fits && too_large ? 0 : 1);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vlmtrain::memory

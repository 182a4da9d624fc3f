#include "vlmtrain/memory/host_malloc.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "vlmtrain/memory/host.h"

namespace vlmtrain::memory {
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

#include "vlmtrain/memory/large_blocks.h"

#include <ATen/ops/full.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "vlmtrain/memory/host.h"
#include "vlmtrain/memory/host_budget.h"

namespace vlmtrain::memory {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

at::Tensor filled(int64_t bytes) {
  return at::full({bytes}, 1, at::kByte);
}

/// A step's tensors: many sizes, others in each step. The most bytes that lived at once.
int64_t run_steps() {
  int64_t most = 0;
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<at::Tensor> kept;
    int64_t bytes = 0;
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t size = (4 + (i * 7 + step) % 5) * kMebibyte + step * 40'000;
      const at::Tensor passing = filled(size / 2);
      kept.push_back(filled(size));
      bytes += size;
      most = std::max(most, bytes + size / 2);
    }
  }
  return most;
}

/// In a process of its own, whose allocator stays as it becomes. Exits with the number of what is wrong.
[[noreturn]] void check_in_this_process() {
  filled(8 * kMebibyte);
  if (large_blocks().live_bytes != 0 || large_blocks().kept_bytes != 0) std::_Exit(1);
  const at::Tensor from_before = filled(8 * kMebibyte);
  HostBudget budget;
  keep_large_blocks();
  {
    const at::Tensor large = filled(8 * kMebibyte), small = filled(1000);
    if (large_blocks().live_bytes != 8 * kMebibyte) std::_Exit(2);
    if (budget.live_bytes() != 8 * kMebibyte + 1000) std::_Exit(3);
  }
  if (budget.live_bytes() != 0 || large_blocks().live_bytes != 0) std::_Exit(4);
  if (large_blocks().kept_bytes != 8 * kMebibyte) std::_Exit(5);
  void* const raw = c10::GetAllocator(c10::DeviceType::CPU)->raw_allocate(4 * kMebibyte);  // as oneDNN takes memory
  if (large_blocks().live_bytes != 4 * kMebibyte) std::_Exit(6);
  c10::GetAllocator(c10::DeviceType::CPU)->raw_deallocate(raw);
  release_large_blocks();
  if (large_blocks().kept_bytes != 0) std::_Exit(7);

  const int64_t before = host_bytes();
  const int64_t lived = run_steps();
  if (host_peak_bytes() - before > lived + 4 * kMebibyte) std::_Exit(8);
  if (large_blocks().kept_bytes < lived / 2) std::_Exit(9);
  std::_Exit(0);
}

TEST(LargeBlocksTest, FreedOnesAreKeptAndThePeakIsThatOfWhatLives) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(check_in_this_process(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vlmtrain::memory

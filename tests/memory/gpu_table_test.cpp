#include "vlmtrain/memory/gpu_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace vlmtrain::memory {
namespace {

TEST(GpuTableTest, FindsCardsByTheirShortName) {
  const Gpu* const gpu = find_gpu("h100");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->architecture, 90);
  EXPECT_EQ(gpu->memory_bytes, 85'029'158'912);
  EXPECT_TRUE(gpu->memory_measured);
  EXPECT_EQ(find_gpu("H100"), nullptr);
  EXPECT_EQ(find_gpu("h1000"), nullptr);
}

TEST(GpuTableTest, EveryNameIsThereOnce) {
  std::set<std::string_view> names;
  for (const auto& gpu : gpus()) EXPECT_TRUE(names.insert(gpu.name).second) << gpu.name;
}

TEST(GpuTableTest, EveryCardIsWhole) {
  for (const auto& gpu : gpus()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(architecture(gpu.architecture).number, gpu.architecture);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_GT(gpu.memory_bytes, int64_t{10} << 30);
    EXPECT_GT(gpu.fp32_operations, 1e12);
    EXPECT_GE(gpu.fp16_operations, gpu.fp32_operations);
    EXPECT_EQ(gpu.bf16_operations > 0, gpu.architecture >= 80);
    EXPECT_GT(gpu.memory_bandwidth, 1e11);
  }
  EXPECT_TRUE(std::ranges::is_sorted(gpus(), {}, &Gpu::architecture));
}

}  // namespace
}  // namespace vlmtrain::memory

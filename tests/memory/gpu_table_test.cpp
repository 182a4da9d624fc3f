#include "vlmtrain/memory/gpu_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace vlmtrain::memory {
namespace {

TEST(GpuTableTest, FindsGpusByShortName) {
  const GpuSpec* const gpu = find_gpu_spec("h100");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->architecture, 90);
  EXPECT_EQ(gpu->memory_bytes, 85'029'158'912);
  EXPECT_TRUE(gpu->is_memory_measured);
  EXPECT_EQ(find_gpu_spec("H100"), nullptr);
  EXPECT_EQ(find_gpu_spec("h1000"), nullptr);
}

TEST(GpuTableTest, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const auto& gpu : list_gpu_specs()) EXPECT_TRUE(names.insert(gpu.name).second) << gpu.name;
}

TEST(GpuTableTest, EveryGpuIsComplete) {
  for (const auto& gpu : list_gpu_specs()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(get_architecture_limits(gpu.architecture).compute_capability, gpu.architecture);
    EXPECT_GT(gpu.num_multiprocessors, 0);
    EXPECT_GT(gpu.memory_bytes, int64_t{5} << 30);
    EXPECT_GT(gpu.fp32_flops, 1e12);
    EXPECT_GE(gpu.fp16_flops, gpu.fp32_flops);
    EXPECT_EQ(gpu.bf16_flops > 0, gpu.architecture >= 80);
    EXPECT_GT(gpu.memory_bandwidth, 1e11);
    EXPECT_GT(gpu.l2_cache_bytes, int64_t{1} << 20);
  }
  EXPECT_TRUE(std::ranges::is_sorted(list_gpu_specs(), {}, &GpuSpec::architecture));
}

TEST(GpuTableTest, MigSliceIsSmallerThanGpu) {
  std::set<std::string_view> names;
  for (const auto& slice : list_mig_slices()) {
    SCOPED_TRACE(slice.name);
    EXPECT_TRUE(names.insert(slice.name).second);
    EXPECT_EQ(find_gpu_spec(slice.name), &slice);
    const GpuSpec* const gpu = find_gpu_spec(slice.name.substr(0, slice.name.find("-mig-")));
    ASSERT_NE(gpu, nullptr);
    EXPECT_TRUE(slice.device_name.starts_with(gpu->device_name));
    EXPECT_LE(slice.num_multiprocessors, gpu->num_multiprocessors);
    EXPECT_LT(slice.memory_bytes, gpu->memory_bytes);
    EXPECT_LE(slice.bf16_flops, gpu->bf16_flops);
    EXPECT_LE(slice.memory_bandwidth, gpu->memory_bandwidth);
  }
}

TEST(GpuTableTest, RatesScaleWithMultiprocessors) {
  const GpuSpec& h100 = *find_gpu_spec("h100");
  const GpuSpec half = scale_multiprocessors(h100, 66);
  EXPECT_EQ(half.num_multiprocessors, 66);
  EXPECT_DOUBLE_EQ(half.bf16_flops, h100.bf16_flops / 2);
  EXPECT_DOUBLE_EQ(half.memory_bandwidth, h100.memory_bandwidth / 2);
  const GpuSpec more = scale_multiprocessors(h100, 144);
  EXPECT_GT(more.bf16_flops, h100.bf16_flops);
  EXPECT_DOUBLE_EQ(more.memory_bandwidth, h100.memory_bandwidth) << "the same memory";
}

TEST(GpuTableTest, UnsupportedGpusAreListedSeparately) {
  ASSERT_NE(find_unsupported_gpu("v100"), nullptr);
  EXPECT_EQ(find_unsupported_gpu("v100")->architecture, 70);
  EXPECT_EQ(find_gpu_spec("v100"), nullptr);
  EXPECT_EQ(find_unsupported_gpu("t4"), nullptr);
}

TEST(GpuTableTest, UnknownArchitectureUsesOlderLimits) {
  EXPECT_EQ(get_architecture_limits(103).compute_capability, 100);
  EXPECT_EQ(get_architecture_limits(130).compute_capability, 120);
  EXPECT_EQ(get_architecture_limits(70).compute_capability, 75) << "older than all: the oldest";
}

}  // namespace
}  // namespace vlmtrain::memory

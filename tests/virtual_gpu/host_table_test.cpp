#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/host_arena.h"
#include "vlmtrain/memory/host_link.h"

namespace vlmtrain {
namespace {

SmallRunSettings make_settings(nn::MemoryPlacement placement) {
  return {.parity_case = "gemma4_per_layer", .lora = nn::LoraSettings{.rank = 4}, .per_layer_tables = placement};
}

const nn::Parameter& find_table(const models::VisionLanguageModel& model) {
  return *std::ranges::find_if(model.parameters().all(), &nn::Parameter::is_per_layer_table);
}

TEST(HostTableTest, StepLaunchesTheSameKernelsAndCopiesNothingElse) {
  const auto run_step = [](nn::MemoryPlacement placement) {
    SmallRun run(make_settings(placement));
    run.step();
    virtual_gpu().reset();
    run.step();
    expect_accepted_without_synchronization();
    return std::tuple(launches_by_kernel(), counters().host_to_device_pinned.bytes);
  };
  EXPECT_EQ(run_step(nn::MemoryPlacement::kHost), run_step(nn::MemoryPlacement::kDevice));
}

TEST(HostTableTest, DeviceMemoryIsSmallerByTheTable) {
  const at::Device device = memory::open_device("cuda");
  int64_t table_bytes = 0;
  const auto measure = [&](nn::MemoryPlacement placement) {
    memory::reset_peak_memory_stats(device);
    const int64_t before = memory::get_device_memory_stats(device).allocated_bytes;
    SmallRun run(make_settings(placement));
    EXPECT_EQ(find_table(run.model()).tensor.is_cpu(), placement == nn::MemoryPlacement::kHost);
    table_bytes = static_cast<int64_t>(find_table(run.model()).tensor.nbytes());
    EXPECT_EQ(run.model().parameters().host_table_bytes(), placement == nn::MemoryPlacement::kHost ? table_bytes : 0);
    run.step();
    return memory::get_device_memory_stats(device).allocated_peak_bytes - before;
  };
  // Both steps run once before, so that the libraries' workspaces exist.
  measure(nn::MemoryPlacement::kDevice);
  const int64_t with_table = measure(nn::MemoryPlacement::kDevice), without_table = measure(nn::MemoryPlacement::kHost);
  constexpr int64_t kAllocatorRounding = 512;
  EXPECT_NEAR(static_cast<double>(with_table - without_table), static_cast<double>(table_bytes), kAllocatorRounding);
}

TEST(HostTableTest, VirtualMemoryTakesNoPages) {
  memory::HostArena arena(memory::open_device("cuda"));
  const at::Tensor tensor = arena.allocate({int64_t{1} << 40}, at::kByte, "test");
  EXPECT_TRUE(tensor.is_cpu());
  EXPECT_TRUE(arena.view_on_device(tensor).is_cuda());
  EXPECT_EQ(arena.view_on_device(tensor).data_ptr(), tensor.data_ptr());
  EXPECT_EQ(arena.bytes(), int64_t{1} << 40);
}

TEST(HostLinkTest, CopiesFromAndToPageLockedMemory) {
  const at::Device device = memory::open_device("cuda");
  virtual_gpu().reset();
  const auto speed = memory::measure_host_link(device);
  EXPECT_GT(std::min({speed.in, speed.out, speed.both}), 0);
  EXPECT_EQ(counters().host_to_device_pinned.num_calls, counters().device_to_host_pinned.num_calls);
  EXPECT_GT(counters().host_to_device_pinned.bytes, 8e9);
  EXPECT_EQ(counters().host_to_device_pageable.num_calls + counters().device_to_host_pageable.num_calls, 0U);
}

}  // namespace
}  // namespace vlmtrain

#include <gtest/gtest.h>

#include <tuple>

#include "engine/host_allocations.h"
#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/allocation_trace.h"

namespace vlmtrain {
namespace {

class OffloadTest : public testing::TestWithParam<engine::OptimizerStateDtype> {
 protected:
  static SmallRunSettings settings(engine::Offload offload) { return {.states = GetParam(), .offload = offload}; }
};

TEST_P(OffloadTest, StepLaunchesTheSameKernelsAndCopiesNothing) {
  const auto run_step = [](engine::Offload offload) {
    SmallRun run(settings(offload));
    run.step();
    virtual_gpu().reset();
    run.step();
    expect_accepted_without_synchronization();
    return std::tuple(launches_by_kernel(), counters().host_to_device_pinned.bytes);
  };
  EXPECT_EQ(run_step(engine::Offload::kOptimizer), run_step(engine::Offload::kNone));
}

TEST_P(OffloadTest, DeviceMemoryIsSmallerByTheStateOnTheHost) {
  const at::Device device = memory::open_device("cuda");
  int64_t host_bytes = 0, num_tensors = 0;
  const auto measure = [&](engine::Offload offload) {
    memory::empty_cache(device);
    const int64_t before = memory::get_device_memory_stats(device).allocated_bytes;
    SmallRun run(settings(offload));
    host_bytes = run.training().optimizer.host_bytes();
    num_tensors = std::ssize(run.training().optimizer.state());
    return memory::get_device_memory_stats(device).allocated_bytes - before;
  };
  const int64_t resident = measure(engine::Offload::kNone);
  EXPECT_EQ(host_bytes, 0);
  const int64_t offloaded = measure(engine::Offload::kOptimizer);
  EXPECT_GT(host_bytes, 0);
  constexpr int64_t kAllocatorRounding = 512;
  EXPECT_NEAR(static_cast<double>(resident - offloaded), static_cast<double>(host_bytes),
              static_cast<double>(num_tensors * kAllocatorRounding));
}

TEST_P(OffloadTest, UpdateAllocatesNothing) {
  SmallRun run(settings(engine::Offload::kOptimizer));
  run.step();
  const memory::AllocationTrace trace(at::Device(at::kCUDA, 0));
  const auto update = run.prepare();
  const size_t events = trace.events().size();
  const HostAllocations on_host;
  run.apply(update);
  EXPECT_EQ(on_host.count(), 0);
  EXPECT_EQ(trace.events().size(), events);
}

INSTANTIATE_TEST_SUITE_P(States, OffloadTest,
                         testing::Values(engine::OptimizerStateDtype::kFp32, engine::OptimizerStateDtype::kBf16,
                                         engine::OptimizerStateDtype::k8Bit),
                         [](const auto& instance) { return "With_" + engine::to_string(instance.param); });

}  // namespace
}  // namespace vlmtrain

// Implements vlmtrain/vgpu/interface.h.

#include "vlmtrain/vgpu/interface.h"

#include "vgpu/core/device_memory.h"
#include "vgpu/core/instrumentation.h"
#include "vgpu/core/virtual_gpu.h"
#include "vgpu/runtime/copy_races.h"
#include "vgpu/runtime/kernel_registry.h"
#include "vgpu/runtime/streams.h"

namespace vlmtrain::vgpu {

namespace {

constexpr VirtualGpuInterface kVirtualGpuInterface{
    .gpu_name = [] { return virtual_gpu() == nullptr ? "" : virtual_gpu()->gpu.name.data(); },
    .read_counters =
        [](GpuCounters* counters) {
          global_counters().read(*counters);
          device_memory().read(*counters);
        },
    .reset =
        [] {
          global_counters().reset();
          device_memory().reset_counters();
          matmul_counter().reset();
          kernel_registry().reset_launch_counts();
          reset_unmodeled_call_counts();
        },
    .for_each_kernel = [](auto visit, void* context) { kernel_registry().for_each_launched_kernel(visit, context); },
    .for_each_matmul = [](auto visit, void* context) { matmul_counter().for_each_matmul(visit, context); },
    .for_each_unmodeled_function = [](auto visit, void* context) { for_each_unmodeled_function(visit, context); },
    .inject_failures = [](FaultPoint fault_point, uint64_t first,
                          uint64_t count) { fault_injector().schedule_faults(fault_point, first, count); },
    .has_launch_latency = [] { return device_clock().is_enabled(); },
    .begin_use = [](const void* first, uint64_t bytes) { copy_race_detector().begin_use(first, bytes); },
    .end_use = [](const void* first) { copy_race_detector().end_use(first); },
};

}  // namespace

}  // namespace vlmtrain::vgpu

extern "C" const vlmtrain::vgpu::VirtualGpuInterface* vlmtrain_vgpu_interface() {
  return &vlmtrain::vgpu::kVirtualGpuInterface;
}

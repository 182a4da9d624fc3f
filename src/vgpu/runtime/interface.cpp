// What the program above the stand-ins can ask (vlmtrain/vgpu/counters.h).

#include "vgpu/core/card.h"
#include "vgpu/core/clock.h"
#include "vgpu/core/count.h"
#include "vgpu/core/device_memory.h"
#include "vgpu/core/faults.h"
#include "vgpu/core/products.h"
#include "vgpu/core/unknown_call.h"
#include "vgpu/runtime/kernel_registry.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::vgpu {

namespace {

constexpr Interface kInterface{
    .card = [] { return card() == nullptr ? "" : card()->gpu.name.data(); },
    .read =
        [](Counters* counters) {
          counts().read(*counters);
          device_memory().read(*counters);
        },
    .reset =
        [] {
          counts().reset();
          device_memory().reset_counters();
          products().reset();
          kernel_registry().reset_launches();
          reset_unknown_calls();
        },
    .each_kernel = [](auto visit, void* context) { kernel_registry().each_launched(visit, context); },
    .each_product = [](auto visit, void* context) { products().each(visit, context); },
    .each_unknown_call = [](auto visit, void* context) { each_unknown_call(visit, context); },
    .fail_calls = [](Fallible call, uint64_t first, uint64_t count) { faults().arm(call, first, count); },
    .takes_time = [] { return device_clock().runs(); },
};

}  // namespace

}  // namespace vlmtrain::vgpu

extern "C" const vlmtrain::vgpu::Interface* vlmtrain_vgpu_interface() {
  return &vlmtrain::vgpu::kInterface;
}

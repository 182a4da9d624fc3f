#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// A schedule of failing calls, from VLMTRAIN_VGPU_FAIL or VirtualGpuInterface::inject_failures.
/// Thread-safe.
class FaultInjector {
 public:
  FaultInjector();

  /// Makes calls `first` to `first + count - 1` of this kind fail. The next call has number 0.
  void schedule_faults(FaultPoint fault_point, uint64_t first, uint64_t count);

  /// Counts a call and returns whether it is to fail. `kernel` is the kernel's mangled name if the
  /// call is a launch, else empty.
  bool consume_scheduled_fault(FaultPoint fault_point, std::string_view kernel = {});

 private:
  /// The calls of one kind that fail, and the number of calls so far.
  struct FaultWindow {
    std::atomic<uint64_t> num_calls{0};
    std::atomic<uint64_t> first{0};
    std::atomic<uint64_t> count{0};
    /// Part of a kernel's mangled name. Until the first failure, launches of other kernels are not
    /// counted; afterwards, all launches are.
    std::string kernel = {};
  };

  void load_environment_faults();

  std::array<FaultWindow, kNumFaultPoints> fault_windows_;
};

/// Returns the schedule of this process.
FaultInjector& fault_injector();

}  // namespace vlmtrain::vgpu

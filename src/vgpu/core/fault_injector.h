#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// A schedule of failing calls, from VLMTRAIN_VGPU_FAIL or VirtualGpuInterface::inject_failures. Thread-safe.
class FaultInjector {
 public:
  FaultInjector();

  /// Makes calls `first` to `first + count - 1` of this kind fail. The next call has number 0.
  void schedule_faults(FaultPoint call, uint64_t first, uint64_t count);

  /// Counts a call and returns whether it is to fail. `kernel` is the kernel's mangled name if the
  /// call is a launch, else empty.
  bool should_fail(FaultPoint call, std::string_view kernel = {});

 private:
  /// The calls of one kind that fail, and the number of calls so far.
  struct FailureWindow {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> first{0};
    std::atomic<uint64_t> count{0};
    /// Part of a kernel's mangled name. Until the first failure, launches of other kernels are not
    /// counted; afterwards, all launches are.
    std::string kernel = {};
  };

  void read_environment();

  std::array<FailureWindow, kNumFaultPoints> windows_;
};

/// Returns the schedule of this process.
FaultInjector& fault_injector();

}  // namespace vlmtrain::vgpu

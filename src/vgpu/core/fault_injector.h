#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// A schedule of failing calls, from VLMTRAIN_VGPU_FAIL or Interface::inject_failures. Thread-safe.
class FaultInjector {
 public:
  FaultInjector();

  /// Makes calls `first` to `first + count - 1` of this kind fail, counted from now on from 0.
  void schedule(FaultPoint call, uint64_t first, uint64_t count);

  /// Counts a call and returns whether it fails. `kernel` is the mangled name in case of a launch.
  bool should_fail(FaultPoint call, std::string_view kernel = {});

 private:
  struct Window {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> first{0};
    std::atomic<uint64_t> count{0};
    std::string kernel = {};  // substring of a kernel's name; other kernels do not count before the first failure
  };

  void read_environment();

  std::array<Window, kNumFaultPoints> windows_;
};

/// Returns the schedule of this process.
FaultInjector& fault_injector();

}  // namespace vlmtrain::vgpu

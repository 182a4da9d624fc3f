#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// Which calls fail (Fallible), as VLMTRAIN_VGPU_FAIL or the program above says (Interface::inject_failures).
/// Thread-safe.
class FaultInjector {
 public:
  FaultInjector();

  /// Of the calls from now on, `count` fail, the one with number `first` (from 0) first.
  void schedule(FaultPoint call, uint64_t first, uint64_t count);

  /// To be asked by each such call, once. `kernel`: the name of one that is launched.
  bool should_fail(FaultPoint call, std::string_view kernel = {});

 private:
  struct Window {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> first{0};
    std::atomic<uint64_t> count{0};
    std::string kernel = {};  // part of a kernel's name: others do not count before the first that fails
  };

  void read_environment();

  std::array<Window, kNumFaultPoints> windows_;
};

FaultInjector& fault_injector();

}  // namespace vlmtrain::vgpu

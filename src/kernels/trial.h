#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

struct FailedTrial {
  Kernel kernel;
  std::string how;
};

/// Each kernel that has() beside ATen's operations on small random inputs, in fp32 and, from sm_80 on, bf16; those that
/// differ by more than rounding, or cannot be started. Gives the memory for it back.
std::vector<FailedTrial> failed_trials(at::Device device);

}  // namespace vlmtrain::kernels
